package dev.windlass;

import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * An answer that is read while it is made, once, by one thread; any thread may close it.
 *
 * <p>A connection that breaks in the middle is no end: the answer is asked for again, with the same seed and of the
 * same version of the model, what was delivered is skipped after it was found equal, and the reader notices
 * nothing but a pause. Closing early stops the service's work.
 */
public final class PieceStream implements Iterable<Piece>, AutoCloseable {
    private static final String DONE = "[DONE]";

    private final Transport transport;
    private final Deadline deadline;
    private final Asking asking;
    private final String path;
    private final Map<String, Object> body;
    private final Retelling told = new Retelling();
    private final Deque<Piece> ready = new ArrayDeque<>();
    private Events events = new Events();
    private URI site;
    private String model;
    private Usage usage;
    private int resumed;
    private boolean isDone;
    private WindlassException trouble;
    private volatile Arrivals arriving;
    private volatile CompletableFuture<Heard> opening;
    private volatile boolean isClosed;

    /** Opens the stream; what the service refuses is thrown here, before anything is read. */
    PieceStream(Transport transport, Deadline deadline, String path, Map<String, Object> body) {
        this.transport = transport;
        this.deadline = deadline;
        this.path = path;
        this.body = body;
        this.asking = new Asking(transport, deadline, Order.streaming(path, body, false));
        transport.began(this);
        try {
            open(asking.begin());
        } catch (WindlassException refused) {
            transport.ended(this);
            throw refused;
        }
    }

    /**
     * Returns the pieces, as they come; each is given once.
     *
     * @return an iterator that waits where a piece is still being made
     */
    @Override
    public Iterator<Piece> iterator() {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return advance();
            }

            @Override
            public Piece next() {
                if (!advance()) {
                    throw new NoSuchElementException("the answer is complete");
                }
                return ready.remove();
            }
        };
    }

    /**
     * Returns the pieces as a sequential stream, which closes this one when it is closed.
     *
     * @return to be read once
     */
    public Stream<Piece> pieces() {
        int kind = Spliterator.ORDERED | Spliterator.NONNULL | Spliterator.IMMUTABLE;
        return StreamSupport.stream(Spliterators.spliteratorUnknownSize(iterator(), kind), false)
                .onClose(this::close);
    }

    /**
     * Waits for the end, and returns the text of the first answer from its beginning.
     *
     * @return all of it, also what was read before
     */
    public String text() {
        while (advance()) {
            ready.remove();
        }
        return told.text();
    }

    /**
     * Returns what the answer took.
     *
     * @return empty until the answer is complete
     */
    public Optional<Usage> usage() {
        return Optional.ofNullable(usage);
    }

    /**
     * Returns the version that answers.
     *
     * @return empty until it has said something
     */
    public Optional<String> model() {
        return Optional.ofNullable(model);
    }

    /**
     * Returns how many times the answer was asked for again after a connection broke.
     *
     * @return 0 where all went well
     */
    public int resumed() {
        return resumed;
    }

    /** Gives up what was not read; the service stops its work. */
    @Override
    public void close() {
        isClosed = true;
        CompletableFuture<Heard> pending = opening;
        if (pending != null) {
            pending.cancel(true);
        }
        Arrivals current = arriving;
        if (current != null) {
            current.close();
        }
        transport.ended(this);
    }

    /** Brings the next piece, and tells whether there is one; an answer that was cut short is not complete. */
    private boolean advance() {
        while (ready.isEmpty() && !isDone && !isClosed) {
            if (trouble == null) {
                step();
            } else {
                recover();
            }
        }
        if (ready.isEmpty() && !isDone) {
            throw new StoppedException("the stream was closed before the answer was complete", null);
        }
        return !ready.isEmpty();
    }

    /** Reads one portion; what goes wrong waits until the pieces that came before it were given out. */
    private void step() {
        try {
            read();
        } catch (WindlassException failure) {
            trouble = failure;
        }
    }

    private void recover() {
        WindlassException failure = trouble;
        trouble = null;
        if (isOfSites(failure)) {
            resume(failure);
        } else {
            close();
            throw failure;
        }
    }

    /** Takes the events of one portion of bytes; an end without its mark is a broken connection. */
    private void read() {
        ByteBuffer portion = arriving.next(deadline.leftWithin(transport.silence));
        if (portion == null) {
            if (!isClosed) {
                throw new UnreachableException("the connection ended before the answer was complete", null);
            }
            return;
        }
        for (Events.Event event : events.feed(portion)) {
            take(event);
        }
    }

    private void take(Events.Event event) {
        if (event.data().equals(DONE)) {
            told.end();
            isDone = true;
            arriving.finish();
            transport.ended(this);
            return;
        }
        Fields chunk = parsed(event.data());
        if (chunk.has("error")) {
            throw new ServiceException(200, Refusal.of(chunk.object("error"), site), "", null);
        }
        model = chunk.text("model");
        usage = chunk.has("usage") ? Usage.of(chunk.object("usage")) : usage;
        for (Fields choice : chunk.objects("choices")) {
            told.take(Piece.of(choice)).ifPresent(this::deliver);
        }
    }

    private static Fields parsed(String data) {
        try {
            return Fields.of(Json.read(data));
        } catch (JsonException error) {
            throw new ReplyException("an event of the stream is not JSON", error);
        }
    }

    private void deliver(Piece piece) {
        asking.progressed();
        ready.add(piece);
    }

    private void resume(WindlassException failure) {
        arriving.close();
        if (isClosed) {
            return;
        }
        if (deadline.isOver() || isLate(failure)) {
            close();
            throw deadline.exceeded(failure);
        }
        resumed++;
        told.again();
        events = new Events();
        try {
            open(asking.again(failure, repeated()));
        } catch (WindlassException last) {
            close();
            throw told.hasBegun() && isOfSites(last) ? broken(last) : last;
        }
    }

    /** Asks for the very version that has begun, where one has. */
    private Order repeated() {
        Map<String, Object> again = new LinkedHashMap<>(body);
        if (told.hasBegun()) {
            again.put("model", model);
        }
        return Order.streaming(path, again, told.hasBegun());
    }

    private static boolean isOfSites(WindlassException failure) {
        return failure instanceof UnreachableException || failure instanceof ServiceException;
    }

    private static boolean isLate(WindlassException failure) {
        return failure instanceof ServiceException refused && refused.code().equals("deadline_exceeded");
    }

    private StreamBrokenException broken(WindlassException last) {
        String message = "the answer broke, and nobody went on with it: " + last.getMessage();
        return new StreamBrokenException(message, told.text(), last);
    }

    private void open(CompletableFuture<Heard> pending) {
        opening = pending;
        if (isClosed) {
            pending.cancel(true);
        }
        try {
            Heard heard = Waiting.on(pending);
            arriving = heard.arriving();
            site = heard.site();
            checkKind(heard);
        } catch (CancellationException stopped) {
            return;
        } finally {
            opening = null;
        }
        if (isClosed) {
            arriving.close();
        }
    }

    private static void checkKind(Heard heard) {
        String kind = heard.headers().firstValue("content-type").orElse("nothing");
        if (!kind.startsWith("text/event-stream")) {
            heard.arriving().close();
            throw new ReplyException(heard.site() + ": answered with " + kind + ", not with a stream of events", null);
        }
    }
}
