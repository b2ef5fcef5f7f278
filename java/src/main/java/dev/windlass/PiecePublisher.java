package dev.windlass;

import java.util.Iterator;
import java.util.Objects;
import java.util.concurrent.Flow;
import java.util.function.Supplier;

/**
 * Offers a streamed answer to subscribers, each of which gets an answer of its own.
 *
 * <p>A thread of the client reads for each subscriber, and no faster than the subscriber asks: the service
 * itself is slowed down.
 */
final class PiecePublisher implements Flow.Publisher<Piece> {
    private final Transport transport;
    private final Supplier<PieceStream> source;

    PiecePublisher(Transport transport, Supplier<PieceStream> source) {
        this.transport = transport;
        this.source = source;
    }

    @Override
    public void subscribe(Flow.Subscriber<? super Piece> subscriber) {
        Objects.requireNonNull(subscriber, "subscriber");
        Delivery delivery = new Delivery(subscriber);
        subscriber.onSubscribe(delivery);
        try {
            transport.read(delivery);
        } catch (StoppedException closed) {
            subscriber.onError(closed);
        }
    }

    private final class Delivery implements Flow.Subscription, Runnable {
        private final Flow.Subscriber<? super Piece> subscriber;
        private long wanted;
        private boolean isCancelled;
        private RuntimeException misuse;
        private PieceStream stream;

        Delivery(Flow.Subscriber<? super Piece> subscriber) {
            this.subscriber = subscriber;
        }

        @Override
        public synchronized void request(long count) {
            if (count <= 0) {
                misuse = new IllegalArgumentException("asked for " + count + " pieces; it must be at least 1");
            } else {
                wanted = wanted + count < 0 ? Long.MAX_VALUE : wanted + count;
            }
            notifyAll();
        }

        @Override
        public void cancel() {
            PieceStream open;
            synchronized (this) {
                isCancelled = true;
                open = stream;
                notifyAll();
            }
            if (open != null) {
                open.close();
            }
        }

        @Override
        public void run() {
            try {
                if (isWanted()) {
                    deliver();
                }
            } catch (RuntimeException error) {
                if (!isCancelled()) {
                    subscriber.onError(error);
                }
            }
        }

        private void deliver() {
            try (PieceStream open = source.get()) {
                keep(open);
                Iterator<Piece> pieces = open.iterator();
                // One piece is read ahead, so that the end is told to those who ask for no more than there is.
                while (pieces.hasNext() && isWanted()) {
                    taken();
                    subscriber.onNext(pieces.next());
                }
                if (!isCancelled()) {
                    subscriber.onComplete();
                }
            }
        }

        /** A subscriber that left while the stream was being opened is noticed here. */
        private void keep(PieceStream open) {
            synchronized (this) {
                stream = open;
            }
            if (isCancelled()) {
                open.close();
            }
        }

        /** Waits until a piece is asked for; false once the subscriber has left. */
        private synchronized boolean isWanted() {
            while (wanted == 0 && !isCancelled && misuse == null) {
                try {
                    wait();
                } catch (InterruptedException interrupted) {
                    throw new StoppedException("the client was closed", interrupted);
                }
            }
            if (misuse != null && !isCancelled) {
                throw misuse;
            }
            return !isCancelled;
        }

        private synchronized void taken() {
            wanted = wanted == Long.MAX_VALUE ? wanted : wanted - 1;
        }

        private synchronized boolean isCancelled() {
            return isCancelled;
        }
    }
}
