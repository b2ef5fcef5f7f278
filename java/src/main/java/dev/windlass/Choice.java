package dev.windlass;

import java.util.List;

/**
 * One of the answers to a request.
 *
 * @param index its place: answers to the first prompt come first
 * @param text what the model wrote
 * @param scores one for each token, if they were asked for
 * @param finish {@code stop} or {@code length}
 */
public record Choice(int index, String text, List<TokenScore> scores, String finish) {
    static Choice of(Fields choice) {
        String text = choice.has("message") ? choice.object("message").text("content") : choice.text("text");
        return new Choice((int) choice.whole("index"), text, TokenScore.listOf(choice), choice.text("finish_reason"));
    }
}
