package dev.windlass;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.DoubleSupplier;
import javax.net.ssl.SSLContext;

/** What all calls of a client share: connections, sites, the key, and the list of what is under way. */
final class Transport implements AutoCloseable {
    private static final Duration CONNECT = Duration.ofSeconds(5);
    private static final long MAX_DEADLINE_MS = 86_400_000;
    private static final String AGENT = "windlass-java/0.1.0";

    final Sites sites;
    final Retries retries;
    final Duration silence;
    final DoubleSupplier luck = () -> ThreadLocalRandom.current().nextDouble();

    private final HttpClient http;
    private final String key;
    private final ExecutorService readers = Executors.newCachedThreadPool(Transport::daemon);
    private final Set<CompletableFuture<?>> waiting = ConcurrentHashMap.newKeySet();
    private final Set<PieceStream> streams = ConcurrentHashMap.newKeySet();
    private final AtomicBoolean isClosed = new AtomicBoolean();

    Transport(List<URI> sites, String key, Retries retries, Duration silence, SSLContext tls) {
        this.sites = new Sites(sites, System::nanoTime);
        this.key = key;
        this.retries = retries;
        this.silence = silence;
        // The gateway speaks HTTP/1.1 only; the default would offer an upgrade with every request.
        HttpClient.Builder builder =
                HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(CONNECT);
        this.http = (tls == null ? builder : builder.sslContext(tls)).build();
    }

    boolean hasKey() {
        return key != null;
    }

    CompletableFuture<HttpResponse<Heard>> send(Order order, URI site, Duration left, boolean isKeyed) {
        HttpRequest request = request(order, site, left, isKeyed);
        return http.sendAsync(request, info -> Heard.subscriber(info, site, order.streams()));
    }

    private HttpRequest request(Order order, URI site, Duration left, boolean isKeyed) {
        long leftMs = Math.min(Math.max(left.toMillis(), 1), MAX_DEADLINE_MS);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(site + order.path()))
                .header("User-Agent", AGENT)
                .header("X-Deadline-Ms", Long.toString(leftMs));
        if (key != null) {
            request.header("Authorization", "Bearer " + key);
        }
        if (isKeyed) {
            request.header("Idempotency-Key", order.idempotencyKey());
        }
        if (order.body() != null) {
            request.header("Content-Type", "application/json").POST(BodyPublishers.ofString(order.body()));
        }
        return request.build();
    }

    /** Remembers what waits, so that closing the client ends it. */
    <T> CompletableFuture<T> watched(CompletableFuture<T> future) {
        checkOpen();
        waiting.add(future);
        future.whenComplete((value, error) -> waiting.remove(future));
        return future;
    }

    void began(PieceStream stream) {
        checkOpen();
        streams.add(stream);
    }

    void ended(PieceStream stream) {
        streams.remove(stream);
    }

    /** Runs work that waits, on a thread that does not keep the program alive. */
    void read(Runnable work) {
        try {
            readers.execute(work);
        } catch (RejectedExecutionException late) {
            throw closed();
        }
    }

    private void checkOpen() {
        if (isClosed.get()) {
            throw closed();
        }
    }

    @Override
    public void close() {
        if (isClosed.compareAndSet(false, true)) {
            streams.forEach(PieceStream::close);
            waiting.forEach(future -> future.completeExceptionally(closed()));
            readers.shutdownNow();
        }
    }

    private static StoppedException closed() {
        return new StoppedException("the client is closed", null);
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "windlass-stream");
        thread.setDaemon(true);
        return thread;
    }
}
