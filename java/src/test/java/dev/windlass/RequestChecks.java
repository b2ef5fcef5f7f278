package dev.windlass;

import static dev.windlass.Checks.equal;
import static dev.windlass.Checks.holds;
import static dev.windlass.Checks.thrown;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

final class RequestChecks {
    private RequestChecks() {}

    static void run(Checks checks) {
        checks.check("what is not set is not sent", () -> {
            equal(CompletionRequest.of("dog").build().body(), Map.of("prompt", List.of("dog")));
            equal(Json.write(ChatRequest.of(Message.user("dog")).build().body()),
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"dog\"}]}");
        });
        checks.check("every setting has the API's name", RequestChecks::everything);
        checks.check("forms are sent by their own names", () -> {
            equal(form(Form.choice("yes", "no")), "{\"guided_choice\":[\"yes\",\"no\"]}");
            equal(form(Form.schema("{\"type\":\"object\"}")), "{\"guided_json\":{\"type\":\"object\"}}");
            equal(form(new Form.Regex("[0-9]+")), "{\"guided_regex\":\"[0-9]+\"}");
            equal(form(new Form.AnyJson()), "{\"response_format\":{\"type\":\"json_object\"}}");
            thrown(JsonException.class, () -> Form.schema("[]"));
        });
        checks.check("a request does not change after it was built", () -> {
            List<Message> turns = new ArrayList<>(List.of(Message.user("dog")));
            ChatRequest request = ChatRequest.of(turns).build();
            turns.clear();
            equal(request.messages().size(), 1);
        });
        checks.check("a reply that lacks something says what", () -> {
            Fields reply = Fields.of(Json.read("{\"choices\":[{\"index\":0,\"text\":5}]}"));
            String told = thrown(ReplyException.class, () -> Answer.of(reply)).getMessage();
            equal(told, "$.choices[0].text is 5, not a text");
        });
        checks.check("a reply may say more than is known", () -> {
            Fields usage = Fields.of(Json.read("{\"prompt_tokens\":3,\"completion_tokens\":4,\"new\":{}}"));
            equal(Usage.of(usage).totalTokens(), 7);
        });
        checks.check("scores of completions and chats become the same", () -> {
            String lists = "{\"logprobs\":{\"tokens\":[\"a\",\"b\"],\"token_logprobs\":[null,-1],"
                    + "\"top_logprobs\":[null,{\"c\":-2.5}],\"text_offset\":[0,1]}}";
            equal(TokenScore.listOf(Fields.of(Json.read(lists))),
                    List.of(new TokenScore("a", null, Map.of()), new TokenScore("b", -1.0, Map.of("c", -2.5))));
            String objects = "{\"logprobs\":{\"content\":[{\"token\":\"b\",\"logprob\":-1,\"bytes\":[98],"
                    + "\"top_logprobs\":[{\"token\":\"c\",\"logprob\":-2.5,\"bytes\":[99]}]}],\"refusal\":null}}";
            equal(TokenScore.listOf(Fields.of(Json.read(objects))),
                    List.of(new TokenScore("b", -1.0, Map.of("c", -2.5))));
        });
        checks.check("settings that make no sense are refused", () -> {
            thrown(IllegalArgumentException.class, () -> Client.builder().build());
            thrown(IllegalArgumentException.class, () -> Client.builder().retries(-1));
            thrown(IllegalArgumentException.class, () -> Client.builder().deadline(java.time.Duration.ZERO));
        });
    }

    private static void everything() {
        CompletionRequest request = CompletionRequest.of(Prompt.ofIds(5, 6))
                .maxTokens(2).logprobs(3).echo().temperature(0.5).topP(0.25).topK(7).minP(0.125)
                .presencePenalty(1).frequencyPenalty(-1).repetitionPenalty(1.5).bias(9, -100)
                .answers(2).seed(-5).stop("a", "b").user("me").priority(-3).build();
        String wanted = "{\"prompt\":[[5,6]],\"max_tokens\":2,\"logprobs\":3,\"echo\":true,\"temperature\":0.5,"
                + "\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"presence_penalty\":1.0,\"frequency_penalty\":-1.0,"
                + "\"repetition_penalty\":1.5,\"logit_bias\":{\"9\":-100.0},\"n\":2,\"seed\":-5,\"stop\":[\"a\",\"b\"],"
                + "\"user\":\"me\",\"priority\":-3}";
        equal(Json.write(request.body()), wanted);
        String chat = Json.write(ChatRequest.of(Message.system("s")).maxTokens(4).logprobs(2).build().body());
        holds(chat.endsWith("\"max_completion_tokens\":4,\"logprobs\":true,\"top_logprobs\":2}"), chat);
    }

    private static String form(Form form) {
        Map<String, Object> body = new java.util.LinkedHashMap<>();
        form.addTo(body);
        return Json.write(body);
    }
}
