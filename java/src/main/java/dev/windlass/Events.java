package dev.windlass;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Cuts the bytes of a stream into server-sent events, as WHATWG's HTML standard has them.
 *
 * <p>Input: bytes in any portions, even half characters. Output: the events that they complete. Lines end with LF,
 * CR or both; comments, ids and unknown fields say nothing; what is begun and not ended by an empty line is
 * never told.
 */
final class Events {
    /** No event of the service is near it; without a bound a stream without line ends would take all memory. */
    private static final int MAX_BYTES = 16 << 20;

    private static final String MARK = "\ufeff";

    /** One event; its name is {@code message} where the stream gives none. */
    record Event(String name, String data) {}

    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final StringBuilder data = new StringBuilder();
    private String name = "";
    private boolean hasData;
    private boolean isAfterReturn;
    private boolean isFirst = true;

    List<Event> feed(ByteBuffer bytes) {
        List<Event> completed = new ArrayList<>();
        while (bytes.hasRemaining()) {
            byte b = bytes.get();
            if (b == '\n' && isAfterReturn) {
                isAfterReturn = false;
            } else if (b == '\n' || b == '\r') {
                isAfterReturn = b == '\r';
                endLine(completed);
            } else {
                isAfterReturn = false;
                append(b);
            }
        }
        return completed;
    }

    private void append(byte b) {
        if (line.size() + data.length() >= MAX_BYTES) {
            throw new ReplyException("an event of the stream is larger than " + MAX_BYTES + " bytes", null);
        }
        line.write(b);
    }

    private void endLine(List<Event> completed) {
        String text = Json.decoded(line.toByteArray());
        line.reset();
        if (isFirst && text.startsWith(MARK)) {
            text = text.substring(1);
        }
        isFirst = false;
        if (text.isEmpty()) {
            dispatch(completed);
        } else if (text.charAt(0) != ':') {
            field(text);
        }
    }

    private void field(String text) {
        int colon = text.indexOf(':');
        String value = colon < 0 ? "" : text.substring(colon + 1);
        value = value.startsWith(" ") ? value.substring(1) : value;
        switch (colon < 0 ? text : text.substring(0, colon)) {
            case "data" -> {
                data.append(hasData ? "\n" : "").append(value);
                hasData = true;
            }
            case "event" -> name = value;
            default -> {
                // id and retry are for clients that connect again by themselves; ours asks again instead
            }
        }
    }

    private void dispatch(List<Event> completed) {
        if (hasData) {
            completed.add(new Event(name.isEmpty() ? "message" : name, data.toString()));
        }
        data.setLength(0);
        hasData = false;
        name = "";
    }
}
