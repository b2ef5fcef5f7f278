package dev.windlass;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

/** What {@link Client} shows, done without waiting: model, body, {@link Asking}, and the reply as a record. */
final class Calls implements AutoCloseable {
    /** Seeds that we choose stay below it: whole numbers that every program can read and type. */
    private static final long SEEDS = 1L << 31;

    private final Transport transport;
    private final Duration deadline;
    private final AtomicReference<String> model;

    Calls(Transport transport, Duration deadline, AtomicReference<String> model) {
        this.transport = transport;
        this.deadline = deadline;
        this.model = model;
    }

    Calls within(Duration other) {
        return new Calls(transport, other, model);
    }

    /** Asks for work that is to be done once, however often it is asked for. */
    <T> CompletableFuture<T> answered(Request request, Function<Heard, T> read) {
        Deadline until = begin();
        String once = UUID.randomUUID().toString();
        return linked(named(request.model(), until), name ->
                heard(Order.once(request.path(), bodyOf(name, request.body()), once), until, read));
    }

    <T> CompletableFuture<T> posted(
            String model, String path, Map<String, Object> body, Function<Heard, T> read) {
        Deadline until = begin();
        return linked(named(model, until), name -> heard(Order.post(path, bodyOf(name, body)), until, read));
    }

    CompletableFuture<List<Model>> models() {
        return models(begin());
    }

    CompletableFuture<DryRun> tried(Request request) {
        Deadline until = begin();
        return linked(named(request.model(), until), name -> {
            Map<String, Object> asked = Map.of("route", request.path(), "body", bodyOf(name, request.body()));
            return heard(Order.post("/v1/dry-run", asked), until, heard -> DryRun.of(heard.fields(), heard.site()));
        });
    }

    /** Waits, since a stream is opened before it is handed out. */
    PieceStream stream(Generation request) {
        Deadline until = begin();
        String name = Waiting.on(named(request.model(), until));
        return new PieceStream(transport, until, request.path(), streamed(name, request));
    }

    Flow.Publisher<Piece> publish(Generation request) {
        return new PiecePublisher(transport, () -> stream(request));
    }

    @Override
    public void close() {
        transport.close();
    }

    private Deadline begin() {
        return new Deadline(deadline, System::nanoTime);
    }

    private <T> CompletableFuture<T> heard(Order order, Deadline until, Function<Heard, T> read) {
        CompletableFuture<Heard> asked = new Asking(transport, until, order).begin();
        CompletableFuture<T> answer = asked.thenApply(read);
        return cancelling(answer, asked);
    }

    private CompletableFuture<List<Model>> models(Deadline until) {
        return heard(Order.get("/v1/models"), until, heard -> Model.listOf(heard.fields()));
    }

    /**
     * Returns the name of the model to ask; where nobody gave one, that of the first that is served. Without its
     * version, since this client may outlive it.
     */
    private CompletableFuture<String> named(String given, Deadline until) {
        String known = given != null ? given : model.get();
        if (known != null) {
            return CompletableFuture.completedFuture(known);
        }
        return models(until).thenApply(served -> {
            if (served.isEmpty()) {
                throw new ReplyException("the service has no models", null);
            }
            model.compareAndSet(null, served.get(0).id().replaceFirst("@[^:]*", ""));
            return model.get();
        });
    }

    private static <A, T> CompletableFuture<T> linked(
            CompletableFuture<A> first, Function<A, CompletableFuture<T>> then) {
        AtomicReference<CompletableFuture<T>> second = new AtomicReference<>(new CompletableFuture<>());
        CompletableFuture<T> whole = first.thenCompose(value -> {
            second.set(then.apply(value));
            return second.get();
        });
        whole.whenComplete((value, error) -> second.get().cancel(true));
        return cancelling(whole, first);
    }

    /** Lets the end of a result be the end of what it was made from. */
    private static <T> CompletableFuture<T> cancelling(CompletableFuture<T> result, CompletableFuture<?> source) {
        result.whenComplete((value, error) -> source.cancel(true));
        return result;
    }

    private static Map<String, Object> bodyOf(String model, Map<String, Object> body) {
        Map<String, Object> whole = new LinkedHashMap<>();
        whole.put("model", model);
        whole.putAll(body);
        return whole;
    }

    private static Map<String, Object> streamed(String model, Generation request) {
        Map<String, Object> body = bodyOf(model, request.body());
        body.putIfAbsent("seed", ThreadLocalRandom.current().nextLong(SEEDS));
        body.put("stream", true);
        body.put("stream_options", Map.of("include_usage", true));
        return body;
    }
}
