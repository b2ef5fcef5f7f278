package dev.windlass;

/**
 * The time that was allowed is over, at the client's clock or at the service's.
 *
 * <p>The cause, where there is one, is the last thing that went wrong before.
 */
public final class DeadlineException extends WindlassException {
    private static final long serialVersionUID = 1;

    DeadlineException(String message, Throwable cause) {
        super(message, cause);
    }
}
