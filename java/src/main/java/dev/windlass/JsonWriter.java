package dev.windlass;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.Map;

/** Writes values as JSON that every reader takes; what JSON cannot hold is refused, never replaced. */
final class JsonWriter {
    private final StringBuilder text;

    JsonWriter(StringBuilder text) {
        this.text = text;
    }

    void write(Object value, int depth) {
        if (depth > Json.MAX_DEPTH) {
            throw new JsonException("the value is nested deeper than " + Json.MAX_DEPTH + " levels, or in a circle");
        }
        if (value == null || value instanceof Boolean) {
            text.append(value);
        } else if (value instanceof Number number) {
            text.append(number(number));
        } else if (value instanceof CharSequence string) {
            string(string);
        } else if (value instanceof Map<?, ?> members) {
            object(members, depth);
        } else if (value instanceof Iterable<?> items) {
            array(items, depth);
        } else {
            throw new JsonException("a " + value.getClass().getName() + " has no JSON");
        }
    }

    private static String number(Number number) {
        if (number instanceof Double || number instanceof Float) {
            if (!Double.isFinite(number.doubleValue())) {
                throw new JsonException("JSON has no " + number);
            }
            return number.toString();
        }
        boolean isPlain = number instanceof Long || number instanceof Integer || number instanceof Short
                || number instanceof Byte || number instanceof BigInteger || number instanceof BigDecimal;
        if (!isPlain) {
            throw new JsonException("a " + number.getClass().getName() + " has no JSON");
        }
        return number.toString();
    }

    private void object(Map<?, ?> members, int depth) {
        char before = '{';
        for (Map.Entry<?, ?> member : members.entrySet()) {
            if (!(member.getKey() instanceof CharSequence name)) {
                throw new JsonException("a name in an object is " + member.getKey() + ", which is no text");
            }
            text.append(before);
            string(name);
            text.append(':');
            write(member.getValue(), depth + 1);
            before = ',';
        }
        text.append(before == '{' ? "{}" : "}");
    }

    private void array(Iterable<?> items, int depth) {
        char before = '[';
        for (Object item : items) {
            text.append(before);
            write(item, depth + 1);
            before = ',';
        }
        text.append(before == '[' ? "[]" : "]");
    }

    private void string(CharSequence string) {
        if (JsonReader.hasHalf(string)) {
            throw new JsonException("a text has half of a surrogate pair, which no encoding can carry");
        }
        text.append('"');
        string.chars().forEach(c -> character((char) c));
        text.append('"');
    }

    private void character(char c) {
        switch (c) {
            case '"' -> text.append("\\\"");
            case '\\' -> text.append("\\\\");
            case '\n' -> text.append("\\n");
            case '\r' -> text.append("\\r");
            case '\t' -> text.append("\\t");
            default -> {
                if (c < ' ' || c == 0x7f) {
                    text.append(String.format("\\u%04x", (int) c));
                } else {
                    text.append(c);
                }
            }
        }
    }
}
