package dev.windlass;

import java.net.URI;
import java.time.Duration;
import java.util.List;

/**
 * What would become of a request. Where it does not fit, {@code error} says why, and the rest is null or empty.
 *
 * @param fits whether its route would take it
 * @param error what its route would refuse it with, or null
 * @param model the version that would answer
 * @param contextLength how many tokens that one reads and writes together
 * @param answers how many there would be
 * @param promptTokens how many would be read
 * @param mostTokens how many all answers may have together
 * @param firstToken an estimate, from what was answered lately; null without any
 * @param whole the same for the whole answer
 * @param quota what is left of each limit
 */
public record DryRun(
        boolean fits,
        Refusal error,
        String model,
        Integer contextLength,
        Integer answers,
        Integer promptTokens,
        Integer mostTokens,
        Duration firstToken,
        Duration whole,
        List<Budget> quota) {

    /**
     * What is left of one limit.
     *
     * @param scope whose it is: {@code all}, {@code tenant} or {@code key}
     * @param kind what it counts
     * @param left what is left now
     * @param capacity the limit itself
     * @param needed what this request would take at most
     */
    public record Budget(String scope, String kind, double left, double capacity, double needed) {
        private static Budget of(Fields entry) {
            return new Budget(
                    entry.text("scope"),
                    entry.text("kind"),
                    entry.number("left"),
                    entry.number("capacity"),
                    entry.number("needed"));
        }
    }

    static DryRun of(Fields reply, URI site) {
        return new DryRun(
                reply.flag("fits"),
                reply.has("error") ? Refusal.of(reply.object("error"), site) : null,
                reply.textOr("model", null),
                reply.countOrNull("context_length"),
                reply.countOrNull("answers"),
                reply.countOrNull("prompt_tokens"),
                reply.countOrNull("max_tokens"),
                seconds(reply.numberOrNull("first_token_s")),
                seconds(reply.numberOrNull("whole_s")),
                reply.objectsOrNone("quota").stream().map(Budget::of).toList());
    }

    private static Duration seconds(Double seconds) {
        return seconds == null ? null : Duration.ofNanos(Math.round(seconds * 1e9));
    }
}
