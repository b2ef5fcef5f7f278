package dev.windlass;

/** A request whose answer is text, and so can be streamed. */
public sealed interface Generation extends Request permits CompletionRequest, ChatRequest {
    /**
     * Returns how tokens are chosen.
     *
     * @return settings that both kinds share
     */
    Sampling sampling();
}
