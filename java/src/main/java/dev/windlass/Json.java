package dev.windlass;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/**
 * JSON as RFC 8259 has it, to and from plain Java values.
 *
 * <p>Objects are {@code Map<String, Object>} in the order of the text, arrays {@code List<Object>}; both cannot be
 * changed. Strings are {@code String}, {@code true} and {@code false} {@code Boolean}, {@code null} null. A number
 * without fraction and exponent is a {@code Long}, or a {@code BigInteger} where a long is too small; any other
 * is a {@code Double}.
 *
 * <p>Strict: what other readers guess about is refused with its place. That is a name twice in one object, half
 * of a surrogate pair, a number beyond a double, a byte order mark, more than {@value #MAX_DEPTH} levels.
 */
public final class Json {
    /** How deep arrays and objects may be nested. */
    public static final int MAX_DEPTH = 128;

    private Json() {}

    /**
     * Reads one value, which must be the whole text.
     *
     * @param text JSON
     * @return a value as described above
     */
    public static Object read(String text) {
        return new JsonReader(text).read();
    }

    /**
     * Reads one value from UTF-8.
     *
     * @param bytes JSON
     * @return a value as described above
     */
    public static Object read(byte[] bytes) {
        return read(decoded(bytes));
    }

    /**
     * Writes a value on one line.
     *
     * @param value null, a {@code Boolean}, {@code Number}, {@code CharSequence}, or an {@code Iterable} or {@code
     *     Map} of such
     * @return JSON without needless blanks
     */
    public static String write(Object value) {
        StringBuilder text = new StringBuilder();
        new JsonWriter(text).write(value, 0);
        return text.toString();
    }

    static String decoded(byte[] bytes) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            throw new JsonException("the text is not UTF-8");
        }
    }
}
