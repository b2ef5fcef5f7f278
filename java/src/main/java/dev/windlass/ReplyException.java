package dev.windlass;

/** Something answered, but not as Windlass does: a wrong address, a proxy's own page, another version. */
public final class ReplyException extends WindlassException {
    private static final long serialVersionUID = 1;

    ReplyException(String message, Throwable cause) {
        super(message, cause);
    }
}
