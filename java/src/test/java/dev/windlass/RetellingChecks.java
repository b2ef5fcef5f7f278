package dev.windlass;

import static dev.windlass.Checks.equal;
import static dev.windlass.Checks.holds;
import static dev.windlass.Checks.thrown;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;

final class RetellingChecks {
    private static final String TEXT = "the quick brown fox, \u6625\u82b1\u79cb\u6708, \ud83d\ude00 and so on";

    private RetellingChecks() {}

    static void run(Checks checks) {
        checks.check("what was told is skipped wherever the pieces are cut", RetellingChecks::anywhere);
        checks.check("a telling that differs breaks the stream", () -> {
            Retelling told = told("the quick");
            told.again();
            StreamBrokenException broken =
                    thrown(StreamBrokenException.class, () -> told.take(piece(0, "the slow", null)));
            equal(broken.delivered(), "the quick");
        });
        checks.check("a telling that ends sooner breaks the stream", () -> {
            Retelling told = told("the quick");
            told.again();
            told.take(piece(0, "the ", null));
            thrown(StreamBrokenException.class, () -> told.take(piece(0, "", "stop")));
            told.again();
            told.take(piece(0, "the ", null));
            thrown(StreamBrokenException.class, told::end);
        });
        checks.check("nothing follows an end that was told", () -> {
            Retelling told = told("the");
            told.take(piece(0, "", "stop"));
            told.again();
            equal(told.take(piece(0, "the", null)), Optional.empty());
            thrown(StreamBrokenException.class, () -> told.take(piece(0, " quick", null)));
        });
        checks.check("an end that was told is not told again", () -> {
            Retelling told = told("the");
            equal(told.take(piece(0, "", "length")), Optional.of(piece(0, "", "length")));
            told.again();
            equal(told.take(piece(0, "the", "length")), Optional.empty());
            told.again();
            told.take(piece(0, "the", null));
            thrown(StreamBrokenException.class, () -> told.take(piece(0, "", "stop")));
        });
        checks.check("several answers are told apart", () -> {
            Retelling told = told("first");
            told.take(piece(1, "second", null));
            told.again();
            equal(told.take(piece(1, "second!", null)), Optional.of(piece(1, "!", null)));
            equal(told.take(piece(0, "first?", null)), Optional.of(piece(0, "?", null)));
            equal(told.text(), "first?");
        });
        checks.check("scores of tokens are told once", () -> {
            Retelling told = new Retelling();
            told.take(scored("a", "a"));
            told.again();
            equal(told.take(scored("ab", "a", "b")), Optional.of(scored("b", "b")));
        });
        checks.check("an opening without text is no beginning", () -> {
            Retelling told = new Retelling();
            equal(told.take(piece(0, "", null)), Optional.empty());
            holds(!told.hasBegun(), "nothing was told");
        });
    }

    private static void anywhere() {
        Random random = new Random(5);
        for (int round = 0; round < 500; round++) {
            Retelling told = new Retelling();
            StringBuilder heard = new StringBuilder();
            for (int telling = random.nextInt(4); telling >= 0; telling--) {
                told.again();
                int end = telling == 0 ? TEXT.length() : random.nextInt(TEXT.length());
                cut(TEXT.substring(0, end), random).forEach(part ->
                        told.take(piece(0, part, null)).ifPresent(fresh -> heard.append(fresh.text())));
            }
            told.end();
            equal(heard.toString(), TEXT);
        }
    }

    private static List<String> cut(String text, Random random) {
        List<String> parts = new ArrayList<>();
        for (int place = 0; place < text.length(); ) {
            int next = Math.min(text.length(), place + 1 + random.nextInt(6));
            parts.add(text.substring(place, next));
            place = next;
        }
        return parts;
    }

    private static Retelling told(String text) {
        Retelling told = new Retelling();
        equal(told.take(piece(0, text, null)), Optional.of(piece(0, text, null)));
        return told;
    }

    private static Piece piece(int choice, String text, String finish) {
        return new Piece(choice, text, List.of(), finish);
    }

    private static Piece scored(String text, String... tokens) {
        List<TokenScore> scores = new ArrayList<>();
        for (String token : tokens) {
            scores.add(new TokenScore(token, -0.5, Map.of()));
        }
        return new Piece(0, text, List.copyOf(scores), null);
    }
}
