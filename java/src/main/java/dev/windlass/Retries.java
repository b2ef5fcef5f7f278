package dev.windlass;

import java.time.Duration;
import java.util.Optional;

/**
 * Whether to ask again after a failure, and when. A pure decision: time left and luck are arguments.
 *
 * @param most how many times a call is asked again
 * @param first the wait before the second try, doubled with each one after it
 * @param longest where doubling ends
 * @param patience a service that asks for a longer wait is not waited for
 */
record Retries(int most, Duration first, Duration longest, Duration patience) {
    private static final int MAX_DOUBLINGS = 30;

    /**
     * Returns how long to wait before the next try, or nothing if there is to be none.
     *
     * <p>Another site is asked at once. Otherwise the wait is what the service asked for or the back-off,
     * whichever is longer; luck takes up to half of the back-off away, lest many clients come back together.
     * A wait that would outlast the deadline is not begun: whoever asked learns of the failure right away.
     */
    Optional<Duration> waitBefore(Failure failure, int tried, boolean hasOther, Duration left, double luck) {
        boolean goesElsewhere = failure.moves() && hasOther;
        if (tried > most || !(failure.passes() || goesElsewhere)) {
            return Optional.empty();
        }
        if (goesElsewhere) {
            return left.isZero() ? Optional.empty() : Optional.of(Duration.ZERO);
        }
        Duration backOff = scaled(backOff(tried), 1 - luck / 2);
        Duration wait = backOff.compareTo(failure.asked()) > 0 ? backOff : failure.asked();
        boolean isBearable = failure.asked().compareTo(patience) <= 0 && wait.compareTo(left) < 0;
        return isBearable ? Optional.of(wait) : Optional.empty();
    }

    private Duration backOff(int tried) {
        Duration doubled = first.multipliedBy(1L << Math.min(Math.max(tried - 1, 0), MAX_DOUBLINGS));
        return doubled.compareTo(longest) < 0 ? doubled : longest;
    }

    private static Duration scaled(Duration duration, double factor) {
        return Duration.ofNanos((long) (duration.toNanos() * factor));
    }
}
