package dev.windlass;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * A conversation whose next turn is asked for.
 *
 * @param model its name, or null for the client's own
 * @param messages the turns so far
 * @param maxTokens the longest answer; null leaves it to the service
 * @param logprobs how many rivals to tell of each token (0: its own probability alone); null for none of it
 * @param sampling how tokens are chosen
 */
public record ChatRequest(
        String model, List<Message> messages, Integer maxTokens, Integer logprobs, Sampling sampling)
        implements Generation {

    /**
     * Takes a copy of the turns.
     *
     * @param model see the record
     * @param messages see the record
     * @param maxTokens see the record
     * @param logprobs see the record
     * @param sampling see the record
     */
    public ChatRequest {
        messages = List.copyOf(messages);
        Objects.requireNonNull(sampling, "sampling");
    }

    /**
     * Begins a request.
     *
     * @param messages the turns so far
     * @return settings to be given, then {@link Builder#build}
     */
    public static Builder of(Message... messages) {
        return of(List.of(messages));
    }

    /**
     * Begins a request.
     *
     * @param messages the turns so far
     * @return settings to be given, then {@link Builder#build}
     */
    public static Builder of(List<Message> messages) {
        return new Builder(messages);
    }

    @Override
    public String path() {
        return "/v1/chat/completions";
    }

    @Override
    public Map<String, Object> body() {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("messages", messages.stream().map(Message::value).toList());
        Sampling.put(body, "max_completion_tokens", maxTokens);
        if (logprobs != null) {
            body.put("logprobs", true);
            body.put("top_logprobs", logprobs);
        }
        sampling.addTo(body);
        return body;
    }

    /** Gathers the settings of a turn. */
    public static final class Builder extends SamplingBuilder<Builder> {
        private final List<Message> messages;
        private String model;
        private Integer maxTokens;
        private Integer logprobs;

        private Builder(List<Message> messages) {
            this.messages = messages;
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
         * Makes the request.
         *
         * @return a value that does not change
         */
        public ChatRequest build() {
            return new ChatRequest(model, messages, maxTokens, logprobs, sampling());
        }
    }
}
