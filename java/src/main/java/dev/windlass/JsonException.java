package dev.windlass;

/** A text that is not JSON, or a value that JSON cannot hold. */
public final class JsonException extends WindlassException {
    private static final long serialVersionUID = 1;

    JsonException(String message) {
        super(message, null);
    }
}
