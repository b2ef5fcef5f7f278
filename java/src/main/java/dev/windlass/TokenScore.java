package dev.windlass;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A token and how likely the model found it.
 *
 * @param token its text
 * @param logprob natural logarithm of its probability; null for a prompt's first token, which follows nothing
 * @param rivals tokens that could have been chosen, with theirs
 */
public record TokenScore(String token, Double logprob, Map<String, Double> rivals) {

    /** Reads either of the API's two shapes: parallel lists of a completion, or a chat's list of objects. */
    static List<TokenScore> listOf(Fields choice) {
        if (!choice.has("logprobs")) {
            return List.of();
        }
        Fields told = choice.object("logprobs");
        return told.has("content") ? ofChat(told) : ofCompletion(told);
    }

    private static List<TokenScore> ofChat(Fields told) {
        List<TokenScore> scores = new ArrayList<>();
        for (Fields one : told.objects("content")) {
            Map<String, Double> rivals = new LinkedHashMap<>();
            one.objectsOrNone("top_logprobs").forEach(each -> rivals.put(each.text("token"), each.number("logprob")));
            scores.add(new TokenScore(one.text("token"), one.number("logprob"), rivals));
        }
        return List.copyOf(scores);
    }

    private static List<TokenScore> ofCompletion(Fields told) {
        List<String> tokens = told.list("tokens", String.class, text -> text);
        List<Double> logprobs = told.list("token_logprobs", Number.class, Number::doubleValue);
        List<Map<String, Double>> rivals =
                told.has("top_logprobs") ? told.list("top_logprobs", Map.class, TokenScore::rivals) : null;
        List<TokenScore> scores = new ArrayList<>();
        for (int place = 0; place < Math.min(tokens.size(), logprobs.size()); place++) {
            Map<String, Double> beside = rivals == null || place >= rivals.size() ? null : rivals.get(place);
            scores.add(new TokenScore(tokens.get(place), logprobs.get(place), beside == null ? Map.of() : beside));
        }
        return List.copyOf(scores);
    }

    private static Map<String, Double> rivals(Map<?, ?> told) {
        Fields scores = Fields.of(told);
        Map<String, Double> rivals = new LinkedHashMap<>();
        told.keySet().forEach(token -> rivals.put(token.toString(), scores.number(token.toString())));
        return rivals;
    }
}
