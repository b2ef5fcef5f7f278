package dev.windlass;

import java.util.List;

/**
 * A text or a conversation as the model reads it.
 *
 * @param model whose tokenizer it was
 * @param contextLength how many tokens the model can read and write together
 * @param ids of the tokens
 * @param texts of the tokens
 */
public record Tokens(String model, int contextLength, List<Integer> ids, List<String> texts) {
    /**
     * Returns how many tokens there are.
     *
     * @return the length of both lists
     */
    public int count() {
        return ids.size();
    }

    static Tokens of(Fields reply) {
        return new Tokens(
                reply.text("model"),
                (int) reply.whole("context_length"),
                List.copyOf(reply.list("tokens", Long.class, Long::intValue)),
                List.copyOf(reply.list("texts", String.class, text -> text)));
    }
}
