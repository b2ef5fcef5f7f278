package dev.windlass;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/**
 * Prompts to be continued.
 *
 * @param model its name, or null for the client's own
 * @param prompt what is continued
 * @param maxTokens the longest answer; null leaves it to the service
 * @param logprobs how many rivals to tell of each token (0: its own probability alone); null for none of it
 * @param echo whether the answer begins with the prompt
 * @param sampling how tokens are chosen
 */
public record CompletionRequest(
        String model, Prompt prompt, Integer maxTokens, Integer logprobs, boolean echo, Sampling sampling)
        implements Generation {

    /**
     * Insists on a prompt.
     *
     * @param model see the record
     * @param prompt see the record
     * @param maxTokens see the record
     * @param logprobs see the record
     * @param echo see the record
     * @param sampling see the record
     */
    public CompletionRequest {
        Objects.requireNonNull(prompt, "prompt");
        Objects.requireNonNull(sampling, "sampling");
    }

    /**
     * Begins a request.
     *
     * @param texts one or more prompts
     * @return settings to be given, then {@link Builder#build}
     */
    public static Builder of(String... texts) {
        return of(Prompt.of(texts));
    }

    /**
     * Begins a request.
     *
     * @param prompt texts, or token ids
     * @return settings to be given, then {@link Builder#build}
     */
    public static Builder of(Prompt prompt) {
        return new Builder(prompt);
    }

    @Override
    public String path() {
        return "/v1/completions";
    }

    @Override
    public Map<String, Object> body() {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("prompt", prompt.value());
        Sampling.put(body, "max_tokens", maxTokens);
        Sampling.put(body, "logprobs", logprobs);
        Sampling.put(body, "echo", echo ? true : null);
        sampling.addTo(body);
        return body;
    }

    /** Gathers the settings of a completion. */
    public static final class Builder extends SamplingBuilder<Builder> {
        private final Prompt prompt;
        private String model;
        private Integer maxTokens;
        private Integer logprobs;
        private boolean echo;

        private Builder(Prompt prompt) {
            this.prompt = prompt;
        }

        @Override
        Builder self() {
            return this;
        }

        /**
         * Names the model.
         *
         * @param name NAME, NAME@VERSION or NAME:ADAPTER
         * @return this
         */
        public Builder model(String name) {
            model = name;
            return this;
        }

        /**
         * Bounds the answer.
         *
         * @param count of tokens
         * @return this
         */
        public Builder maxTokens(int count) {
            maxTokens = count;
            return this;
        }

        /**
         * Asks for the log-probability of each token.
         *
         * @param rivals how many others to tell beside it, 0 to 20
         * @return this
         */
        public Builder logprobs(int rivals) {
            logprobs = rivals;
            return this;
        }

        /**
         * Begins the answer with the prompt.
         *
         * @return this
         */
        public Builder echo() {
            echo = true;
            return this;
        }

        /**
         * Makes the request.
         *
         * @return a value that does not change
         */
        public CompletionRequest build() {
            return new CompletionRequest(model, prompt, maxTokens, logprobs, echo, sampling());
        }
    }
}
