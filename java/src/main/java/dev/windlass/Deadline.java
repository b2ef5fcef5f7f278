package dev.windlass;

import java.time.Duration;
import java.util.function.LongSupplier;

/** Until when one call may go on, all its tries and waits together. */
final class Deadline {
    private final Duration allowed;
    private final LongSupplier nanos;
    private final long begun;

    Deadline(Duration allowed, LongSupplier nanos) {
        this.allowed = allowed;
        this.nanos = nanos;
        this.begun = nanos.getAsLong();
    }

    Duration left() {
        Duration left = allowed.minusNanos(nanos.getAsLong() - begun);
        return left.isNegative() ? Duration.ZERO : left;
    }

    boolean isOver() {
        return left().isZero();
    }

    /** Returns the shorter of what is left and some other bound. */
    Duration leftWithin(Duration bound) {
        Duration left = left();
        return left.compareTo(bound) < 0 ? left : bound;
    }

    DeadlineException exceeded(Throwable cause) {
        return new DeadlineException("the answer was not complete within " + seconds(allowed), cause);
    }

    static String seconds(Duration duration) {
        double seconds = duration.toMillis() / 1000.0;
        return (seconds == Math.rint(seconds) ? Long.toString((long) seconds) : Double.toString(seconds)) + " s";
    }
}
