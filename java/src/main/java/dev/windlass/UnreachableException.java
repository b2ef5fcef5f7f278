package dev.windlass;

/** A site could not be reached, or the connection broke before it had answered. */
public final class UnreachableException extends WindlassException {
    private static final long serialVersionUID = 1;

    UnreachableException(String message, Throwable cause) {
        super(message, cause);
    }
}
