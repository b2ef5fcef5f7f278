package dev.windlass;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.TreeMap;

/**
 * Makes an answer that is told several times, each time from its beginning, look like one.
 *
 * <p>An answer is a function of its request and seed, so a service that is asked again tells the same text. What
 * was delivered is skipped, char by char and token by token, wherever the new pieces are cut; and it is
 * compared, because a text that was shown must not be completed with another one's end.
 */
final class Retelling {
    private final TreeMap<Integer, Told> choices = new TreeMap<>();

    /** What is known of one answer, and how far the present telling has come in it. */
    private static final class Told {
        final StringBuilder text = new StringBuilder();
        int scores;
        String finish;
        int place;
        int scoresAgain;
    }

    /** Begins another telling. */
    void again() {
        for (Told told : choices.values()) {
            told.place = 0;
            told.scoresAgain = 0;
        }
    }

    /** Returns what a piece adds to all that was told before, if anything. */
    Optional<Piece> take(Piece piece) {
        Told told = choices.computeIfAbsent(piece.choice(), index -> new Told());
        String text = freshText(told, piece.text());
        List<TokenScore> scores = freshScores(told, piece.scores());
        String finish = freshFinish(told, piece.finish());
        if (text.isEmpty() && scores.isEmpty() && finish == null) {
            return Optional.empty();
        }
        return Optional.of(new Piece(piece.choice(), text, scores, finish));
    }

    /** Checks, when a telling says that it is complete, that it told all that was told before. */
    void end() {
        if (choices.values().stream().anyMatch(told -> told.place < told.text.length())) {
            throw different();
        }
    }

    boolean hasBegun() {
        return choices.values().stream().anyMatch(told -> told.text.length() > 0 || told.finish != null);
    }

    /** Returns the text of the first answer so far. */
    String text() {
        Collection<Told> told = choices.values();
        return told.isEmpty() ? "" : told.iterator().next().text.toString();
    }

    private String freshText(Told told, String text) {
        int known = Math.min(text.length(), told.text.length() - told.place);
        if (!told.text.substring(told.place, told.place + known).equals(text.substring(0, known))) {
            throw different();
        }
        String fresh = text.substring(known);
        if (!fresh.isEmpty() && told.finish != null) {
            throw different();
        }
        told.text.append(fresh);
        told.place += text.length();
        return fresh;
    }

    private static List<TokenScore> freshScores(Told told, List<TokenScore> scores) {
        List<TokenScore> fresh = new ArrayList<>();
        for (TokenScore score : scores) {
            if (++told.scoresAgain > told.scores) {
                fresh.add(score);
            }
        }
        told.scores += fresh.size();
        return List.copyOf(fresh);
    }

    private String freshFinish(Told told, String finish) {
        if (finish == null) {
            return null;
        }
        if (told.place < told.text.length() || (told.finish != null && !told.finish.equals(finish))) {
            throw different();
        }
        boolean isFresh = told.finish == null;
        told.finish = finish;
        return isFresh ? finish : null;
    }

    private StreamBrokenException different() {
        String message = "the answer broke, and another one was told when it was asked for again";
        return new StreamBrokenException(message, text(), null);
    }
}
