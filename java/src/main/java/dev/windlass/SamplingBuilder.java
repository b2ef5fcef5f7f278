package dev.windlass;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The settings that completions and chat share, one by one; what is not set, the service decides.
 *
 * @param <B> the builder itself
 */
public abstract sealed class SamplingBuilder<B extends SamplingBuilder<B>>
        permits CompletionRequest.Builder, ChatRequest.Builder {
    private Double temperature;
    private Double topP;
    private Integer topK;
    private Double minP;
    private Double presencePenalty;
    private Double frequencyPenalty;
    private Double repetitionPenalty;
    private final Map<Integer, Double> bias = new LinkedHashMap<>();
    private Integer answers;
    private Long seed;
    private List<String> stop = List.of();
    private Form form;
    private String user;
    private Integer priority;

    SamplingBuilder() {}

    abstract B self();

    Sampling sampling() {
        return new Sampling(
                temperature,
                topP,
                topK,
                minP,
                presencePenalty,
                frequencyPenalty,
                repetitionPenalty,
                bias,
                answers,
                seed,
                stop,
                form,
                user,
                priority);
    }

    /**
     * Sets how much chance there is.
     *
     * @param value 0 is greedy, up to 2
     * @return this
     */
    public B temperature(double value) {
        temperature = value;
        return self();
    }

    /**
     * Keeps the likeliest tokens that have this probability together.
     *
     * @param value above 0, up to 1
     * @return this
     */
    public B topP(double value) {
        topP = value;
        return self();
    }

    /**
     * Keeps so many of the likeliest tokens.
     *
     * @param value 0 keeps all
     * @return this
     */
    public B topK(int value) {
        topK = value;
        return self();
    }

    /**
     * Drops tokens that are less likely than this part of the likeliest.
     *
     * @param value 0 to 1
     * @return this
     */
    public B minP(double value) {
        minP = value;
        return self();
    }

    /**
     * Makes tokens that are there already less likely.
     *
     * @param value -2 to 2
     * @return this
     */
    public B presencePenalty(double value) {
        presencePenalty = value;
        return self();
    }

    /**
     * Makes tokens less likely for each time that they are there already.
     *
     * @param value -2 to 2
     * @return this
     */
    public B frequencyPenalty(double value) {
        frequencyPenalty = value;
        return self();
    }

    /**
     * Makes tokens of prompt and answer less likely.
     *
     * @param value above 0, up to 2; 1 does nothing
     * @return this
     */
    public B repetitionPenalty(double value) {
        repetitionPenalty = value;
        return self();
    }

    /**
     * Adds to the score of a token.
     *
     * @param token its id
     * @param value -100 to 100
     * @return this
     */
    public B bias(int token, double value) {
        bias.put(token, value);
        return self();
    }

    /**
     * Asks for several answers to each prompt.
     *
     * @param count 1 to 128
     * @return this
     */
    public B answers(int count) {
        answers = count;
        return self();
    }

    /**
     * Fixes the chance: the same seed, prompt and settings give the same answer.
     *
     * @param value any number
     * @return this
     */
    public B seed(long value) {
        seed = value;
        return self();
    }

    /**
     * Ends an answer where one of these texts would begin.
     *
     * @param texts up to four
     * @return this
     */
    public B stop(String... texts) {
        stop = List.of(texts);
        return self();
    }

    /**
     * Says what the answer must look like.
     *
     * @param value such as {@link Form#choice}
     * @return this
     */
    public B form(Form value) {
        form = value;
        return self();
    }

    /**
     * Groups requests: while a new version is rolled out, one user meets one version.
     *
     * @param value any name; it is not kept
     * @return this
     */
    public B user(String value) {
        user = value;
        return self();
    }

    /**
     * Goes before others, or after them.
     *
     * @param value -100 to 100; higher goes first
     * @return this
     */
    public B priority(int value) {
        priority = value;
        return self();
    }
}
