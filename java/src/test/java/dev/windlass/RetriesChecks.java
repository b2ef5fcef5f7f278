package dev.windlass;

import static dev.windlass.Checks.equal;
import static dev.windlass.Checks.holds;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;

final class RetriesChecks {
    private static final Duration PLENTY = Duration.ofMinutes(5);
    private static final Retries POLICY =
            new Retries(4, Duration.ofMillis(250), Duration.ofSeconds(8), Duration.ofSeconds(60));

    private RetriesChecks() {}

    static void run(Checks checks) {
        checks.check("the wait doubles up to a bound", () -> {
            Retries patient = new Retries(100, Duration.ofMillis(250), Duration.ofSeconds(8), PLENTY);
            long[] wanted = {250, 500, 1000, 2000, 4000, 8000, 8000};
            for (int tried = 1; tried <= wanted.length; tried++) {
                equal(patient.waitBefore(gone(), tried, false, PLENTY, 0), millis(wanted[tried - 1]));
            }
            equal(patient.waitBefore(gone(), 90, false, PLENTY, 0), millis(8000));
        });
        checks.check("luck takes up to half of the wait away", () ->
                equal(POLICY.waitBefore(gone(), 2, false, PLENTY, 1), millis(250)));
        checks.check("the service's own wait is kept where it is longer", () -> {
            equal(POLICY.waitBefore(refused("rate_limited", 429, 3), 1, false, PLENTY, 0.5), millis(3000));
            equal(POLICY.waitBefore(refused("rate_limited", 429, 0), 3, false, PLENTY, 0), millis(1000));
        });
        checks.check("tries end", () -> {
            holds(POLICY.waitBefore(gone(), 4, false, PLENTY, 0).isPresent(), "the fourth retry");
            equal(POLICY.waitBefore(gone(), 5, false, PLENTY, 0), Optional.empty());
            equal(POLICY.waitBefore(gone(), 5, true, PLENTY, 0), Optional.empty());
        });
        checks.check("a wait that outlasts the deadline is not begun", () -> {
            Failure busy = refused("rate_limited", 429, 3);
            equal(POLICY.waitBefore(busy, 1, false, Duration.ofSeconds(3), 0), Optional.empty());
            equal(POLICY.waitBefore(busy, 1, false, Duration.ofMillis(3001), 0), millis(3000));
        });
        checks.check("a service that asks for hours is not waited for", () ->
                equal(POLICY.waitBefore(refused("quota_exhausted", 429, 7200), 1, false, Duration.ofDays(1), 0),
                        Optional.empty()));
        checks.check("another site is asked at once", () -> {
            equal(POLICY.waitBefore(gone(), 1, true, PLENTY, 0), millis(0));
            equal(POLICY.waitBefore(refused("quota_exhausted", 429, 7200), 1, true, PLENTY, 0), millis(0));
            equal(POLICY.waitBefore(gone(), 1, true, Duration.ZERO, 0), Optional.empty());
        });
        checks.check("mistakes of the caller are final", RetriesChecks::finals);
        checks.check("work that is under way is waited for where it is", () ->
                equal(refused("idempotency_in_progress", 409, 1), new Failure(true, false, Duration.ofSeconds(1))));
        checks.check("a deadline that one site cannot keep is tried elsewhere only", () -> {
            equal(POLICY.waitBefore(refused("deadline_unreachable", 429, 1), 1, false, PLENTY, 0), Optional.empty());
            equal(POLICY.waitBefore(refused("deadline_unreachable", 429, 1), 1, true, PLENTY, 0), millis(0));
        });
        checks.check("codes that are not known yet go by their status", () -> {
            equal(refused("melted", 503, 0), new Failure(true, true, Duration.ZERO));
            equal(refused("melted", 418, 0), new Failure(false, false, Duration.ZERO));
        });
        checks.check("failures within a stream go by their code", () -> {
            equal(refused("shutting_down", 200, 0), new Failure(true, true, Duration.ZERO));
            equal(refused("unauthorized", 200, 0), new Failure(false, false, Duration.ZERO));
        });
        checks.check("a version that is gone here may be elsewhere, for an answer that has begun", () -> {
            ServiceException gone = exception("model_not_found", 404, 0);
            equal(Failure.of(gone).orElsewhere(gone), new Failure(false, true, Duration.ZERO));
            equal(Failure.of(gone), new Failure(false, false, Duration.ZERO));
        });
        checks.check("a deadline counts down and never below nothing", () -> {
            AtomicLong clock = new AtomicLong(Long.MAX_VALUE - 5);
            Deadline deadline = new Deadline(Duration.ofNanos(20), clock::get);
            clock.addAndGet(15);
            equal(deadline.left(), Duration.ofNanos(5));
            equal(deadline.leftWithin(Duration.ofNanos(3)), Duration.ofNanos(3));
            clock.addAndGet(15);
            equal(deadline.left(), Duration.ZERO);
            holds(deadline.isOver(), "is over");
        });
    }

    private static void finals() {
        Failure none = new Failure(false, false, Duration.ZERO);
        equal(refused("invalid_value", 400, 0), none);
        equal(refused("unauthorized", 401, 0), none);
        equal(refused("model_not_found", 404, 0), none);
        equal(refused("idempotency_mismatch", 422, 0), none);
        equal(refused("poisonous", 500, 0), none);
        equal(refused("deadline_exceeded", 408, 0), none);
        equal(Failure.of(new ReplyException("a page", null)), none);
        equal(POLICY.waitBefore(none, 1, true, PLENTY, 0), Optional.empty());
    }

    private static Failure gone() {
        return Failure.of(new UnreachableException("gone", null));
    }

    private static Failure refused(String code, int status, int afterS) {
        return Failure.of(exception(code, status, afterS));
    }

    static ServiceException exception(String code, int status, int afterS) {
        Refusal refusal = new Refusal(code, "", "no", null, null, null, null, "", "");
        return new ServiceException(status, refusal, "", afterS == 0 ? null : Duration.ofSeconds(afterS));
    }

    private static Optional<Duration> millis(long millis) {
        return Optional.of(Duration.ofMillis(millis));
    }
}
