package dev.windlass;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * How tokens are chosen, and when to end; null (or an empty collection) leaves it to the service.
 *
 * @param temperature 0 is greedy, up to 2
 * @param topP keeps the likeliest tokens that have this probability together
 * @param topK keeps so many of the likeliest tokens; 0 keeps all
 * @param minP drops tokens less likely than this part of the likeliest
 * @param presencePenalty -2 to 2, for tokens that are there already
 * @param frequencyPenalty -2 to 2, for each time that a token is there already
 * @param repetitionPenalty above 1, tokens of prompt and answer become less likely
 * @param bias added to the scores of tokens, by their ids, -100 to 100
 * @param answers how many for each prompt; the API calls it n
 * @param seed the same seed, prompt and settings give the same answer
 * @param stop up to four texts that end an answer, and are not part of it
 * @param form what the answer must look like
 * @param user groups requests: one user's requests of a bare name meet one version of a model
 * @param priority -100 to 100; higher goes first
 */
public record Sampling(
        Double temperature,
        Double topP,
        Integer topK,
        Double minP,
        Double presencePenalty,
        Double frequencyPenalty,
        Double repetitionPenalty,
        Map<Integer, Double> bias,
        Integer answers,
        Long seed,
        List<String> stop,
        Form form,
        String user,
        Integer priority) {

    /**
     * Takes copies of the collections.
     *
     * @param temperature see the record
     * @param topP see the record
     * @param topK see the record
     * @param minP see the record
     * @param presencePenalty see the record
     * @param frequencyPenalty see the record
     * @param repetitionPenalty see the record
     * @param bias see the record
     * @param answers see the record
     * @param seed see the record
     * @param stop see the record
     * @param form see the record
     * @param user see the record
     * @param priority see the record
     */
    public Sampling {
        bias = Map.copyOf(bias);
        stop = List.copyOf(stop);
    }

    void addTo(Map<String, Object> body) {
        put(body, "temperature", temperature);
        put(body, "top_p", topP);
        put(body, "top_k", topK);
        put(body, "min_p", minP);
        put(body, "presence_penalty", presencePenalty);
        put(body, "frequency_penalty", frequencyPenalty);
        put(body, "repetition_penalty", repetitionPenalty);
        put(body, "logit_bias", bias.isEmpty() ? null : named(bias));
        put(body, "n", answers);
        put(body, "seed", seed);
        put(body, "stop", stop.isEmpty() ? null : stop);
        put(body, "user", user);
        put(body, "priority", priority);
        if (form != null) {
            form.addTo(body);
        }
    }

    static void put(Map<String, Object> body, String name, Object value) {
        if (value != null) {
            body.put(name, value);
        }
    }

    /** JSON has no numbers as names. */
    private static Map<String, Double> named(Map<Integer, Double> bias) {
        Map<String, Double> named = new LinkedHashMap<>();
        bias.forEach((token, value) -> named.put(token.toString(), value));
        return named;
    }
}
