package dev.windlass;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;

/**
 * Does what a program would, against a real service, and prints what it saw as lines of JSON.
 *
 * <p>tests/java/test_java_sdk.py starts it, plays the world around it, and judges.
 */
public final class Story {
    private static final CompletionRequest LAZY = CompletionRequest.of("the lazy dog").maxTokens(9).build();

    private final Client client;

    private Story(Client client) {
        this.client = client;
    }

    /**
     * Tells one story.
     *
     * @param arguments its name, then the sites
     * @throws Exception where the story has an end that was not foreseen
     */
    public static void main(String[] arguments) throws Exception {
        String[] sites = List.of(arguments).subList(1, arguments.length).toArray(String[]::new);
        int retries = arguments[0].equals("refused") ? 1 : 4;
        Duration most = Duration.ofSeconds(60);
        try (Client client = Client.builder().sites(sites).deadline(most).retries(retries).build()) {
            new Story(client).tell(arguments[0]);
        }
    }

    private void tell(String name) throws Exception {
        switch (name) {
            case "calls" -> calls();
            case "later" -> later();
            case "stream" -> stream();
            case "published" -> published();
            case "leaving" -> leaving();
            case "cancelling" -> cancelling();
            case "closing" -> closing();
            case "refused" -> refused();
            case "twice" -> twice();
            case "late" -> late();
            default -> throw new IllegalArgumentException(name);
        }
    }

    private static void say(String name, Object value) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put(name, value);
        System.out.println(Json.write(line));
        System.out.flush();
    }

    private void calls() {
        say("models", client.models().stream().map(Model::id).toList());
        Answer answer = client.complete(
                CompletionRequest.of("the lazy dog").maxTokens(3).temperature(0).seed(5).stop("fox").build());
        say("complete", List.of(answer.text(), answer.finish(), answer.model(), answer.usage().totalTokens()));
        Answer several = client.complete(
                CompletionRequest.of(Prompt.ofIds(5, 6)).maxTokens(2).answers(2).logprobs(1).build());
        say("several", several.choices().stream().map(each -> each.scores().size()).toList());
        say("chat", client.chat(ChatRequest.of(Message.user("the fox")).maxTokens(4).build()).text());
        say("embed", client.embed("the", "dog").vectors().stream().map(List::size).toList());
        Tokens tokens = client.tokenize("the lazy dog");
        say("tokenize", List.of(tokens.count(), tokens.texts(), tokens.contextLength()));
        say("turns", client.tokenize(List.of(Message.user("the fox"))).count());
        say("detokenize", client.detokenize(tokens.ids()));
        DryRun fits = client.dryRun(LAZY);
        say("fits", List.of(fits.fits(), fits.promptTokens(), fits.mostTokens()));
        DryRun large = client.dryRun(CompletionRequest.of("dog").maxTokens(500).build());
        say("large", List.of(large.fits(), large.error().code(), large.error().param()));
    }

    /** Several at once, without a thread for each. */
    private void later() {
        List<CompletableFuture<Answer>> asked = new ArrayList<>();
        for (String prompt : List.of("the", " lazy", " dog", " fox")) {
            asked.add(client.completeAsync(CompletionRequest.of(prompt).maxTokens(2).build()));
        }
        say("later", asked.stream().map(each -> each.join().text()).toList());
        CompletableFuture<Answer> wrong = client.chatAsync(ChatRequest.of(Message.user("a")).temperature(7).build());
        try {
            wrong.join();
        } catch (CompletionException failed) {
            say("wrong", ((ServiceException) failed.getCause()).param().orElseThrow());
        }
        say("vectors", client.embedAsync(EmbeddingRequest.of("dog")).join().vectors().size());
        say("turn", client.chatAsync(ChatRequest.of(Message.user("dog")).maxTokens(2).build()).join().finish());
    }

    /** Both kinds, from the first piece to the last; what breaks in between is told by its name. */
    private void stream() {
        try (PieceStream stream = client.stream(LAZY)) {
            List<String> pieces = new ArrayList<>();
            stream.forEach(piece -> pieces.add(piece.text()));
            say("pieces", pieces);
            say("text", stream.text());
            int written = stream.usage().orElseThrow().completionTokens();
            say("end", List.of(stream.resumed(), written, stream.model().orElseThrow()));
        } catch (StreamBrokenException broken) {
            say("broken", broken.delivered());
            return;
        }
        ChatRequest asked = ChatRequest.of(Message.user("the fox")).maxTokens(3).logprobs(1).build();
        try (PieceStream stream = client.stream(asked)) {
            say("chat", stream.pieces().mapToInt(piece -> piece.scores().size()).sum());
        }
    }

    private void published() throws InterruptedException {
        List<String> texts = new ArrayList<>();
        CountDownLatch ended = new CountDownLatch(1);
        client.publish(LAZY).subscribe(new Flow.Subscriber<>() {
            private Flow.Subscription subscription;

            @Override
            public void onSubscribe(Flow.Subscription given) {
                subscription = given;
                given.request(1);
            }

            @Override
            public void onNext(Piece piece) {
                texts.add(piece.text());
                subscription.request(1);
            }

            @Override
            public void onError(Throwable error) {
                say("error", error.toString());
                ended.countDown();
            }

            @Override
            public void onComplete() {
                ended.countDown();
            }
        });
        say("ended", ended.await(30, TimeUnit.SECONDS));
        say("published", String.join("", texts));
    }

    private void leaving() {
        try (PieceStream stream = client.stream(LAZY)) {
            say("first", stream.iterator().next().text());
        }
        say("left", true);
        waitForTheWorld();
    }

    private void cancelling() {
        CompletableFuture<Answer> answer = client.completeAsync(LAZY);
        waitForTheWorld();
        answer.cancel(true);
        say("cancelled", answer.isCancelled());
        waitForTheWorld();
    }

    /** Closes the client under a thread that reads, and one that waits. */
    private void closing() throws Exception {
        CompletableFuture<Answer> whole = client.completeAsync(LAZY);
        PieceStream stream = client.stream(LAZY);
        CompletableFuture<String> reading = CompletableFuture.supplyAsync(stream::text);
        waitForTheWorld();
        client.close();
        List<String> ended = new ArrayList<>();
        for (CompletableFuture<?> each : List.of(reading, whole)) {
            ended.add(each.handle((value, error) -> Asking.unwrapped(error).getClass().getSimpleName())
                    .get(20, TimeUnit.SECONDS));
        }
        say("ended", ended);
        try {
            client.models();
        } catch (StoppedException refused) {
            say("closed", refused.getMessage());
        }
    }

    private void refused() {
        try {
            client.stream(LAZY);
        } catch (ServiceException error) {
            say("refused", List.of(error.status(), error.code(), error.getMessage(), error.docUrl()));
            say("id", error.requestId());
        } catch (UnreachableException error) {
            say("unreachable", error.getMessage());
        }
    }

    private void twice() {
        say("first", client.complete(LAZY).text());
        say("second", client.complete(LAZY).text());
    }

    private void late() {
        client.tokenize("dog"); // learns the model's name, which is no part of this story
        Client hasty = client.within(Duration.ofSeconds(2));
        try {
            hasty.complete(LAZY);
        } catch (DeadlineException error) {
            say("late", error.getMessage());
        }
        try (PieceStream stream = hasty.stream(LAZY)) {
            stream.text();
        } catch (DeadlineException error) {
            say("slow", error.getMessage());
        }
    }

    /** Waits until the one who judges has seen enough, and says so by a line. */
    private static void waitForTheWorld() {
        say("waiting", true);
        try {
            int heard = System.in.read();
            assert heard == '\n' : heard;
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
