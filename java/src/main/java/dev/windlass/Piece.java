package dev.windlass;

import java.util.List;

/**
 * What a streamed answer gains at once.
 *
 * @param choice which of the answers, from 0
 * @param text perhaps empty, where only the end is told
 * @param scores of the tokens, if they were asked for
 * @param finish {@code stop} or {@code length} in an answer's last piece, else null
 */
public record Piece(int choice, String text, List<TokenScore> scores, String finish) {
    static Piece of(Fields choice) {
        String text = choice.has("delta") ? choice.object("delta").textOr("content", "") : choice.textOr("text", "");
        return new Piece(
                (int) choice.whole("index"), text, TokenScore.listOf(choice), choice.textOr("finish_reason", null));
    }
}
