package dev.windlass;

/**
 * An answer had begun and could not be brought to its end.
 *
 * <p>Either no site went on with it in the tries that were allowed (the cause is the last failure), or one told
 * another text than before: then what was shown cannot be completed, and nothing is made up.
 */
public final class StreamBrokenException extends WindlassException {
    private static final long serialVersionUID = 1;

    /** What the program has received of the first answer. */
    private final String delivered;

    StreamBrokenException(String message, String delivered, Throwable cause) {
        super(message, cause);
        this.delivered = delivered;
    }

    /**
     * Returns the text of the first answer that had been delivered.
     *
     * @return perhaps an empty text
     */
    public String delivered() {
        return delivered;
    }
}
