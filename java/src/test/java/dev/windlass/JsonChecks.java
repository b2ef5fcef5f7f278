package dev.windlass;

import static dev.windlass.Checks.equal;
import static dev.windlass.Checks.holds;
import static dev.windlass.Checks.thrown;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

final class JsonChecks {
    private static final String[] NO_JSON = {
        "", " ", "nul", "nulll", "True", "[1,]", "[,1]", "[1 2]", "[1", "{", "{}}", "{\"a\"}", "{\"a\":}",
        "{a:1}", "{\"a\":1,}", "{'a':1}", "01", "-", "+1", ".5", "5.", "1e", "1e+", "0x10", "1_000", "--1", "-a",
        "NaN", "Infinity", "-Infinity", "\"", "\"a", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"",
        "\"\\u\uff11234\"", "\"a\nb\"",
        "\"\u0000\"", "\ufeff1", "1 //", "[1] 2", "\u00a01", "\"\\", "tru\u0435"
    };

    private JsonChecks() {}

    static void run(Checks checks) {
        checks.check("numbers are those of RFC 8259", JsonChecks::numbers);
        checks.check("a number beyond a double is refused", () -> {
            thrown(JsonException.class, () -> Json.read("1e309"));
            thrown(JsonException.class, () -> Json.read("[" + "9".repeat(2000) + "]"));
        });
        checks.check("what is not JSON is refused with its place", JsonChecks::refusals);
        checks.check("escapes and pairs of surrogates are read", JsonChecks::strings);
        checks.check("half of a surrogate pair is neither read nor written", JsonChecks::halves);
        checks.check("a name twice in one object is refused", () -> {
            String message = thrown(JsonException.class, () -> Json.read("{\"a\":1,\"a\":2}")).getMessage();
            equal(message, "not JSON at character 7: the name 'a' is there twice");
        });
        checks.check("depth is bounded in both directions", JsonChecks::depth);
        checks.check("bytes that are not UTF-8 are refused", () -> {
            byte[] broken = {'"', (byte) 0xc3, '"'};
            thrown(JsonException.class, () -> Json.read(broken));
            equal(Json.read("\"\u96ea\"".getBytes(StandardCharsets.UTF_8)), "\u96ea");
        });
        checks.check("objects keep their order and cannot be changed", () -> {
            Object read = Json.read("{\"b\":[1],\"a\":null}");
            equal(Json.write(read), "{\"b\":[1],\"a\":null}");
            thrown(UnsupportedOperationException.class, () -> Fields.members(read).put("c", 1));
        });
        checks.check("values that JSON cannot hold are refused", JsonChecks::unwritable);
        checks.check("control characters are escaped", () -> {
            equal(Json.write("a\"\\\n\r\t\b\u0001\u007f/"), "\"a\\\"\\\\\\n\\r\\t\\u0008\\u0001\\u007f/\"");
        });
        checks.check("what is written is read as it was, for a thousand random values", JsonChecks::thereAndBack);
    }

    private static void numbers() {
        equal(Json.read("0"), 0L);
        equal(Json.read("-7"), -7L);
        equal(Json.read("9223372036854775807"), Long.MAX_VALUE);
        equal(Json.read("-9223372036854775808"), Long.MIN_VALUE);
        equal(Json.read("9223372036854775808"), new BigInteger("9223372036854775808"));
        equal(Json.read("-0"), -0.0);
        equal(Json.read("1.0"), 1.0);
        equal(Json.read("1E3"), 1000.0);
        equal(Json.read("2.5e-3"), 0.0025);
        equal(Json.read("1e-400"), 0.0);
        equal(Json.write(List.of(1, 2L, 0.5, 1e300, new BigDecimal("1E+3"))), "[1,2,0.5,1.0E300,1E+3]");
    }

    private static void refusals() {
        for (String text : NO_JSON) {
            String message = thrown(JsonException.class, () -> Json.read(text)).getMessage();
            holds(message.startsWith("not JSON at character "), text + ": " + message);
        }
        equal(thrown(JsonException.class, () -> Json.read("[1,]")).getMessage(),
                "not JSON at character 3: a value was expected");
    }

    private static void strings() {
        equal(Json.read("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\""), "\"\\/\b\f\n\r\t\u00e9");
        equal(Json.read("\"\\ud83d\\ude00\""), "\ud83d\ude00");
        equal(Json.read("\"\ud83d\ude00\""), "\ud83d\ude00");
        equal(Json.read("\"" + "\ud83d" + "\\ude00\""), "\ud83d\ude00");
        equal(Json.write("\ud83d\ude00\u2028"), "\"\ud83d\ude00\u2028\"");
    }

    private static void halves() {
        String[] halves = {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ude00\\ud83d\"", "\"\\ud83dx\"", "\"\ud83d\""};
        for (String text : halves) {
            holds(thrown(JsonException.class, () -> Json.read(text)).getMessage().contains("surrogate"), text);
        }
        thrown(JsonException.class, () -> Json.write("\ud83d"));
        thrown(JsonException.class, () -> Json.write(Map.of("\ude00", 1)));
    }

    private static void depth() {
        int most = Json.MAX_DEPTH;
        Json.read("[".repeat(most) + "]".repeat(most));
        thrown(JsonException.class, () -> Json.read("[".repeat(most + 1) + "]".repeat(most + 1)));
        thrown(JsonException.class, () -> Json.read("{\"a\":".repeat(100_000)));
        List<Object> circle = new ArrayList<>();
        circle.add(circle);
        thrown(JsonException.class, () -> Json.write(circle));
        Json.read("[" + "[],".repeat(1000) + "[]]");
    }

    private static void unwritable() {
        Map<Object, Object> numbered = new LinkedHashMap<>();
        numbered.put(5, "five");
        for (Object value : Arrays.asList(Double.NaN, Float.POSITIVE_INFINITY, new Object(), numbered, 'c')) {
            thrown(JsonException.class, () -> Json.write(value));
        }
    }

    private static void thereAndBack() {
        Random random = new Random(17);
        for (int round = 0; round < 1000; round++) {
            Object value = value(random, 0);
            equal(Json.read(Json.write(value)), value);
        }
    }

    private static Object value(Random random, int depth) {
        return switch (random.nextInt(depth > 4 ? 5 : 7)) {
            case 0 -> null;
            case 1 -> random.nextBoolean();
            case 2 -> random.nextLong();
            case 3 -> Double.longBitsToDouble(random.nextLong() & ~(1L << 62));
            case 4 -> text(random);
            case 5 -> {
                List<Object> items = new ArrayList<>();
                for (int left = random.nextInt(4); left > 0; left--) {
                    items.add(value(random, depth + 1));
                }
                yield items;
            }
            default -> {
                Map<String, Object> members = new LinkedHashMap<>();
                for (int left = random.nextInt(4); left > 0; left--) {
                    members.put(text(random), value(random, depth + 1));
                }
                yield members;
            }
        };
    }

    private static String text(Random random) {
        return random.ints(random.nextInt(6), 0, 0x110000)
                .filter(code -> code < 0xd800 || code > 0xdfff)
                .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append)
                .toString();
    }
}
