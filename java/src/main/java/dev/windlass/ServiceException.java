package dev.windlass;

import java.time.Duration;
import java.util.Optional;

/** The service refused, and says why; {@link #refusal()} has every word of it. */
public final class ServiceException extends WindlassException {
    private static final long serialVersionUID = 1;

    /** The status of the HTTP answer, or 200 where a stream had begun. */
    private final int status;

    /** The error envelope. */
    @SuppressWarnings("serial") // nobody sends exceptions of this kind elsewhere
    private final Refusal refusal;

    /** What Retry-After said, or null. */
    private final Duration retryAfter;

    ServiceException(int status, Refusal refusal, String hint, Duration retryAfter) {
        super(refusal.message() + hint, null);
        this.status = status;
        this.refusal = refusal;
        this.retryAfter = retryAfter;
    }

    /**
     * Returns the HTTP status.
     *
     * @return 400 and more, or 200 where a stream had begun before it failed
     */
    public int status() {
        return status;
    }

    /**
     * Returns the whole error envelope.
     *
     * @return with the place of the mistake, what may stand there, and a body that would be accepted
     */
    public Refusal refusal() {
        return refusal;
    }

    /**
     * Returns the code to branch on; codes are never renamed.
     *
     * @return such as {@code rate_limited}
     */
    public String code() {
        return refusal.code();
    }

    /**
     * Returns where in the request the mistake is.
     *
     * @return such as {@code messages[0].content}; empty where no place is to blame
     */
    public Optional<String> param() {
        return Optional.ofNullable(refusal.param());
    }

    /**
     * Returns the page that explains the code.
     *
     * @return its whole address, at the site that refused
     */
    public String docUrl() {
        return refusal.docUrl();
    }

    /**
     * Returns the id by which the service's log knows the request.
     *
     * @return the value of X-Request-Id
     */
    public String requestId() {
        return refusal.requestId();
    }

    /**
     * Returns how long the service asks to be left alone.
     *
     * @return what Retry-After said, if it said anything
     */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }
}
