package dev.windlass;

import java.util.Map;
import java.util.Objects;

/**
 * Inputs, each of which becomes one unit vector.
 *
 * @param model its name, or null for the client's own
 * @param input texts, or token ids
 */
public record EmbeddingRequest(String model, Prompt input) implements Request {

    /**
     * Insists on an input.
     *
     * @param model see the record
     * @param input see the record
     */
    public EmbeddingRequest {
        Objects.requireNonNull(input, "input");
    }

    /**
     * Makes a request to the client's own model.
     *
     * @param texts one or more
     * @return the request
     */
    public static EmbeddingRequest of(String... texts) {
        return new EmbeddingRequest(null, Prompt.of(texts));
    }

    @Override
    public String path() {
        return "/v1/embeddings";
    }

    @Override
    public Map<String, Object> body() {
        return Map.of("input", input.value());
    }
}
