package dev.windlass;

/** The calling thread was interrupted (its flag stays set), or the client was closed while it waited. */
public final class StoppedException extends WindlassException {
    private static final long serialVersionUID = 1;

    StoppedException(String message, Throwable cause) {
        super(message, cause);
    }
}
