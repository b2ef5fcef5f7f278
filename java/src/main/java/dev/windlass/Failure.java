package dev.windlass;

import java.time.Duration;
import java.util.Set;

/**
 * What a failure means for the next try.
 *
 * @param passes whether it may pass by itself, so that asking the same site again makes sense
 * @param moves whether another site may do better at once
 * @param asked what the service asked for; zero where it asked for nothing
 */
record Failure(boolean passes, boolean moves, Duration asked) {
    /** Troubles of one site, and limits, which each site keeps for itself. */
    private static final Set<String> PASSING = Set.of(
            "internal",
            "engine_failed",
            "engine_unavailable",
            "state_unavailable",
            "shutting_down",
            "queue_full",
            "overloaded",
            "too_many_connections",
            "too_many_concurrent",
            "rate_limited",
            "quota_exhausted");

    /** To wait does not help here, but another site may be quicker. */
    private static final Set<String> ELSEWHERE = Set.of("deadline_unreachable");

    /** The site does the work already; another one would do it twice. */
    private static final Set<String> HERE = Set.of("idempotency_in_progress", "head_timeout", "body_timeout");

    /** A request that ends engines is not tried on others. */
    private static final Set<String> NEVER = Set.of("poisonous", "deadline_exceeded");

    private static final Failure FINAL = new Failure(false, false, Duration.ZERO);

    static Failure of(WindlassException error) {
        if (error instanceof UnreachableException) {
            return new Failure(true, true, Duration.ZERO);
        }
        return error instanceof ServiceException refused ? of(refused) : FINAL;
    }

    private static Failure of(ServiceException refused) {
        String code = refused.code();
        Duration wait = refused.retryAfter().orElse(Duration.ZERO);
        // Codes that a newer service may have are known by their status.
        boolean isPassing = PASSING.contains(code) || refused.status() == 429 || refused.status() >= 500;
        if (ELSEWHERE.contains(code)) {
            return new Failure(false, true, wait);
        }
        if (HERE.contains(code)) {
            return new Failure(true, false, wait);
        }
        return isPassing && !NEVER.contains(code) ? new Failure(true, true, wait) : FINAL;
    }

    /** Returns the same for an answer that has begun: its version may be gone here and be there elsewhere. */
    Failure orElsewhere(WindlassException error) {
        boolean isGone = error instanceof ServiceException refused && refused.code().equals("model_not_found");
        return isGone ? new Failure(false, true, Duration.ZERO) : this;
    }
}
