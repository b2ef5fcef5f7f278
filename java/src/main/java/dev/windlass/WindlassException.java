package dev.windlass;

/**
 * Whatever goes wrong between a program and a Windlass service.
 *
 * <pre>
 * WindlassException
 *     ServiceException         the service refused, and says why and what would be right
 *     DeadlineException        the time that was allowed is over
 *     StreamBrokenException    an answer had begun and could not be brought to its end
 *     UnreachableException     no site can be reached
 *     ReplyException           something answered, but not as Windlass does
 *     StoppedException         the thread was interrupted, or the client closed
 *     JsonException            a text is not JSON, or a value has no JSON
 * </pre>
 */
public class WindlassException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /**
     * Tells what happened.
     *
     * @param message one line for people
     * @param cause what it follows from, or null
     */
    public WindlassException(String message, Throwable cause) {
        super(message, cause);
    }
}
