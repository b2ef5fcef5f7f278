package dev.windlass;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads one JSON value by recursive descent; errors name the place as a count of chars. */
final class JsonReader {
    /** A long number takes time in the square of its length to convert. */
    private static final int MAX_DIGITS = 1024;

    private final String text;
    private int place;
    private int depth;

    JsonReader(String text) {
        this.text = text;
    }

    Object read() {
        Object value = value();
        skipBlanks();
        if (place < text.length()) {
            throw wrong("the end of the text was expected");
        }
        return value;
    }

    private Object value() {
        skipBlanks();
        return switch (peek()) {
            case '{' -> nested(true);
            case '[' -> nested(false);
            case '"' -> string();
            case 't' -> word("true", true);
            case 'f' -> word("false", false);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private Object nested(boolean isObject) {
        if (++depth > Json.MAX_DEPTH) {
            throw wrong("nested deeper than " + Json.MAX_DEPTH + " levels");
        }
        place++;
        Object value = isObject ? object() : array();
        depth--;
        return value;
    }

    private Map<String, Object> object() {
        Map<String, Object> members = new LinkedHashMap<>();
        if (!taken('}')) {
            do {
                member(members);
            } while (taken(','));
            expect('}', "',' or '}' was expected");
        }
        return Collections.unmodifiableMap(members);
    }

    private void member(Map<String, Object> members) {
        skipBlanks();
        int start = place;
        if (peek() != '"') {
            throw wrong("a name in quotes was expected");
        }
        String name = string();
        expect(':', "':' was expected");
        if (members.containsKey(name)) {
            place = start;
            throw wrong("the name '" + name + "' is there twice");
        }
        members.put(name, value());
    }

    private List<Object> array() {
        List<Object> items = new ArrayList<>();
        if (!taken(']')) {
            do {
                items.add(value());
            } while (taken(','));
            expect(']', "',' or ']' was expected");
        }
        return Collections.unmodifiableList(items);
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, place)) {
            throw wrong("a value was expected");
        }
        place += word.length();
        return value;
    }

    private String string() {
        StringBuilder read = new StringBuilder();
        int start = place++;
        while (peek() != '"') {
            char c = text.charAt(place++);
            if (c < ' ') {
                place--;
                throw wrong("a control character must be written as an escape");
            }
            read.append(c == '\\' ? escaped() : c);
        }
        place++;
        if (hasHalf(read)) {
            place = start;
            throw wrong("the string has half of a surrogate pair");
        }
        return read.toString();
    }

    private char escaped() {
        char c = peek();
        place++;
        return switch (c) {
            case '"', '\\', '/' -> c;
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'u' -> unicode();
            default -> {
                place--;
                throw wrong("this is no escape");
            }
        };
    }

    private char unicode() {
        int code = 0;
        for (int digit = 0; digit < 4; digit++) {
            int value = hexadecimal(peek());
            if (value < 0) {
                throw wrong("four hexadecimal digits were expected");
            }
            code = code * 16 + value;
            place++;
        }
        return (char) code;
    }

    /** Character.digit would also take digits of other scripts. */
    private static int hexadecimal(char c) {
        return c < 128 ? Character.digit(c, 16) : -1;
    }

    /** Tells whether surrogates stand alone; both halves may have come as escapes, or as they are. */
    static boolean hasHalf(CharSequence text) {
        for (int at = 0; at < text.length(); at++) {
            char c = text.charAt(at);
            if (Character.isHighSurrogate(c)
                    && at + 1 < text.length()
                    && Character.isLowSurrogate(text.charAt(at + 1))) {
                at++;
            } else if (Character.isSurrogate(c)) {
                return true;
            }
        }
        return false;
    }

    private Number number() {
        int start = place;
        skip('-');
        if (!skip('0')) {
            digits("a value was expected");
        }
        boolean isWhole = true;
        if (skip('.')) {
            isWhole = false;
            digits("a digit was expected");
        }
        if (skip('e') || skip('E')) {
            isWhole = false;
            if (!skip('+')) {
                skip('-');
            }
            digits("a digit was expected");
        }
        return converted(text.substring(start, place), isWhole, start);
    }

    private void digits(String complaint) {
        int start = place;
        while (place < text.length() && text.charAt(place) >= '0' && text.charAt(place) <= '9') {
            place++;
        }
        if (place == start) {
            throw wrong(complaint);
        }
    }

    private Number converted(String number, boolean isWhole, int start) {
        if (number.length() > MAX_DIGITS) {
            place = start;
            throw wrong("the number has more than " + MAX_DIGITS + " characters");
        }
        if (isWhole && !number.equals("-0")) {
            BigInteger value = new BigInteger(number);
            return value.bitLength() < Long.SIZE ? (Number) value.longValue() : value;
        }
        double value = Double.parseDouble(number);
        if (Double.isInfinite(value)) {
            place = start;
            throw wrong("the number is larger than a double can be");
        }
        return value;
    }

    private void skipBlanks() {
        while (place < text.length() && " \t\n\r".indexOf(text.charAt(place)) >= 0) {
            place++;
        }
    }

    private boolean taken(char wanted) {
        skipBlanks();
        return skip(wanted);
    }

    private boolean skip(char wanted) {
        boolean isThere = place < text.length() && text.charAt(place) == wanted;
        if (isThere) {
            place++;
        }
        return isThere;
    }

    private void expect(char wanted, String complaint) {
        if (!taken(wanted)) {
            throw wrong(complaint);
        }
    }

    private char peek() {
        if (place >= text.length()) {
            throw wrong("the text ends too early");
        }
        return text.charAt(place);
    }

    private JsonException wrong(String complaint) {
        return new JsonException("not JSON at character " + place + ": " + complaint);
    }
}
