package dev.windlass;

import java.util.Map;

/** Work for the engine, as a value: it can be sent any number of times, and to any client. */
public sealed interface Request permits Generation, EmbeddingRequest {
    /**
     * Returns the name of the model.
     *
     * @return NAME, NAME@VERSION or NAME:ADAPTER; null for the client's own
     */
    String model();

    /**
     * Returns the path of its route.
     *
     * @return such as {@code /v1/completions}
     */
    String path();

    /**
     * Returns the body of the HTTP request, without the model.
     *
     * @return what {@link Json#write} takes; what was left out, the service decides
     */
    Map<String, Object> body();
}
