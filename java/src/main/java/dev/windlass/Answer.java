package dev.windlass;

import java.time.Instant;
import java.util.List;

/**
 * What became of a completion or a chat.
 *
 * @param id of the answer
 * @param model the version that answered
 * @param created when
 * @param choices one or more
 * @param usage what it took
 */
public record Answer(String id, String model, Instant created, List<Choice> choices, Usage usage) {
    /**
     * Returns the text of the first answer.
     *
     * @return what the model wrote
     */
    public String text() {
        return choices.get(0).text();
    }

    /**
     * Returns why the first answer ended.
     *
     * @return {@code stop} or {@code length}
     */
    public String finish() {
        return choices.get(0).finish();
    }

    static Answer of(Fields reply) {
        List<Choice> choices = reply.objects("choices").stream().map(Choice::of).toList();
        if (choices.isEmpty()) {
            throw new ReplyException("the answer has no choices", null);
        }
        return new Answer(
                reply.text("id"),
                reply.text("model"),
                Instant.ofEpochSecond(reply.whole("created")),
                choices,
                Usage.of(reply.object("usage")));
    }
}
