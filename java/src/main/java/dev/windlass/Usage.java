package dev.windlass;

/**
 * Tokens read and written.
 *
 * @param promptTokens read
 * @param completionTokens written, in all answers together
 */
public record Usage(int promptTokens, int completionTokens) {
    /**
     * Returns the tokens that limits count.
     *
     * @return read and written together
     */
    public int totalTokens() {
        return promptTokens + completionTokens;
    }

    static Usage of(Fields usage) {
        Integer written = usage.countOrNull("completion_tokens");
        return new Usage((int) usage.whole("prompt_tokens"), written == null ? 0 : written);
    }
}
