package dev.windlass;

import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;

/**
 * Hands the bytes of a body over from the HTTP client's threads to the one that reads, and never more than it
 * takes: what is not asked for stays with the service. Unlike an InputStream it can be waited for with a bound.
 */
final class Arrivals implements HttpResponse.BodySubscriber<Arrivals> {
    private final Deque<ByteBuffer> portions = new ArrayDeque<>();
    private Flow.Subscription subscription;
    private Throwable error;
    private boolean isEnded;
    private boolean isClosed;

    @Override
    public CompletionStage<Arrivals> getBody() {
        return CompletableFuture.completedFuture(this);
    }

    @Override
    public void onSubscribe(Flow.Subscription given) {
        synchronized (this) {
            subscription = given;
        }
        if (isClosed()) {
            given.cancel();
        } else {
            given.request(1);
        }
    }

    @Override
    public synchronized void onNext(List<ByteBuffer> buffers) {
        if (!isClosed) {
            portions.addAll(buffers);
            notifyAll();
        }
    }

    @Override
    public synchronized void onError(Throwable given) {
        error = given;
        notifyAll();
    }

    @Override
    public synchronized void onComplete() {
        isEnded = true;
        notifyAll();
    }

    /**
     * Waits for the next portion; returns null at the end of the body, or once closed.
     *
     * <p>A connection that breaks, or is silent for longer than the patience, is an UnreachableException.
     */
    ByteBuffer next(Duration patience) {
        try {
            ByteBuffer portion = awaited(System.nanoTime() + patience.toNanos(), patience);
            askForMore();
            return portion;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new StoppedException("interrupted while an answer was being read", interrupted);
        }
    }

    private synchronized ByteBuffer awaited(long until, Duration patience) throws InterruptedException {
        while (portions.isEmpty() && error == null && !isEnded && !isClosed) {
            long left = until - System.nanoTime();
            if (left <= 0) {
                throw new UnreachableException("nothing was heard for " + Deadline.seconds(patience), null);
            }
            TimeUnit.NANOSECONDS.timedWait(this, left);
        }
        if (isClosed) {
            return null;
        }
        if (portions.isEmpty() && error != null) {
            throw new UnreachableException("the connection broke in the middle of an answer", error);
        }
        return portions.poll();
    }

    /** The subscription is called without the lock, since it may call back from its own threads. */
    private void askForMore() {
        Flow.Subscription given;
        synchronized (this) {
            boolean isOpen = !isEnded && !isClosed && error == null;
            given = portions.isEmpty() && isOpen ? subscription : null;
        }
        if (given != null) {
            given.request(1);
        }
    }

    synchronized boolean isClosed() {
        return isClosed;
    }

    /** Gives the rest up; the connection is cut, so that the service stops its work. */
    void close() {
        Flow.Subscription given = ended();
        if (given != null) {
            given.cancel();
        }
    }

    /** Lets the rest go by after the last that matters, so that the connection can be used again. */
    void finish() {
        Flow.Subscription given = ended();
        if (given != null) {
            given.request(Long.MAX_VALUE);
        }
    }

    /** Marks the end for the reader; returns the subscription if there is still something to do about it. */
    private synchronized Flow.Subscription ended() {
        boolean isOver = isClosed || isEnded || error != null;
        isClosed = true;
        notifyAll();
        return isOver ? null : subscription;
    }
}
