package dev.windlass;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * One call: asked until a site answers it, it is refused for good, or its time is over.
 *
 * <p>Nothing here waits on a thread: a try, its failure and the next try follow each other as callbacks. Blocking
 * calls wait for the future, so both kinds have one path. Methods of one object are never called at the same
 * time: each begins when the one before has ended.
 */
final class Asking {
    private final Transport transport;
    private final Deadline deadline;
    private Order order;
    private int tried;
    private URI site;
    private boolean isKeyed;
    private WindlassException last;

    Asking(Transport transport, Deadline deadline, Order order) {
        this.transport = transport;
        this.deadline = deadline;
        this.order = order;
    }

    CompletableFuture<Heard> begin() {
        CompletableFuture<Heard> result = transport.watched(new CompletableFuture<>());
        guarded(result, () -> attempt(result));
        return result;
    }

    /** Asks again for a stream that broke; the tries are those that are left since it last made progress. */
    CompletableFuture<Heard> again(WindlassException failure, Order changed) {
        order = changed;
        CompletableFuture<Heard> result = transport.watched(new CompletableFuture<>());
        recover(failure, result);
        return result;
    }

    /** Notes that the service is answering: the next failure is the first of its kind. */
    void progressed() {
        tried = 1;
    }

    private void attempt(CompletableFuture<Heard> result) {
        if (result.isDone()) {
            return;
        }
        if (deadline.isOver()) {
            result.completeExceptionally(deadline.exceeded(last));
            return;
        }
        tried++;
        site = transport.sites.best();
        isKeyed = order.idempotencyKey() != null && transport.sites.takesKeys(site);
        CompletableFuture<HttpResponse<Heard>> sending = transport.send(order, site, deadline.left(), isKeyed);
        result.whenComplete((heard, error) -> giveUp(sending, error));
        sending.copy()
                .orTimeout(patience().toNanos(), TimeUnit.NANOSECONDS)
                .whenComplete((response, error) ->
                        guarded(result, () -> settle(response, unwrapped(error), sending, result)));
    }

    private static void giveUp(CompletableFuture<?> sending, Throwable error) {
        if (error != null && !sending.isDone()) {
            sending.cancel(true);
        }
    }

    /** What is thrown in a callback reaches whoever waits, instead of nobody. */
    private static void guarded(CompletableFuture<?> result, Runnable work) {
        try {
            work.run();
        } catch (RuntimeException error) {
            result.completeExceptionally(error);
        }
    }

    /** A stream's head comes at once and comments keep it alive, so its silence means something sooner. */
    private Duration patience() {
        return order.streams() ? deadline.leftWithin(transport.silence) : deadline.left();
    }

    private void settle(
            HttpResponse<Heard> response,
            Throwable error,
            CompletableFuture<?> sending,
            CompletableFuture<Heard> result) {
        if (error != null && result.isDone()) {
            return; // whoever asked gave it up, which is no fault of the site
        }
        if (error instanceof TimeoutException) {
            sending.cancel(true);
            timedOut(result);
        } else if (error != null) {
            recover(unreachable(error), result);
        } else if (response.body().isGood()) {
            transport.sites.answered(site);
            deliver(response.body(), result);
        } else {
            refused(response.body(), result);
        }
    }

    private void timedOut(CompletableFuture<Heard> result) {
        if (deadline.isOver()) {
            result.completeExceptionally(deadline.exceeded(last));
        } else {
            String message = site + ": did not begin to answer within " + Deadline.seconds(transport.silence);
            recover(new UnreachableException(message, null), result);
        }
    }

    private static void deliver(Heard heard, CompletableFuture<Heard> result) {
        boolean isLate = !result.complete(heard);
        if (isLate && heard.arriving() != null) {
            heard.arriving().close();
        }
    }

    private void refused(Heard heard, CompletableFuture<Heard> result) {
        WindlassException error = heard.refusal(transport.hasKey());
        String code = error instanceof ServiceException refused ? refused.code() : "";
        if (code.equals("deadline_exceeded")) {
            result.completeExceptionally(deadline.exceeded(error));
        } else if (code.equals("invalid_header") && isKeyed) {
            // Both headers that we send are right, so this one keeps no state in which a key could be noted.
            transport.sites.takesNoKeys(site);
            tried--;
            attempt(result);
        } else {
            recover(error, result);
        }
    }

    private void recover(WindlassException error, CompletableFuture<Heard> result) {
        last = error;
        Failure failure = order.isBegun() ? Failure.of(error).orElsewhere(error) : Failure.of(error);
        if (failure.moves()) {
            transport.sites.failed(site, failure.asked());
        }
        boolean hasOther = transport.sites.hasOther(site);
        Optional<Duration> wait = transport.retries.waitBefore(
                failure, tried, hasOther, deadline.left(), transport.luck.getAsDouble());
        if (wait.isEmpty()) {
            result.completeExceptionally(error);
        } else {
            CompletableFuture.delayedExecutor(wait.get().toNanos(), TimeUnit.NANOSECONDS)
                    .execute(() -> guarded(result, () -> attempt(result)));
        }
    }

    private UnreachableException unreachable(Throwable error) {
        String what = error instanceof IOException ? "cannot be reached" : "could not be asked";
        String why = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
        return new UnreachableException(site + ": " + what + " (" + why + "); is the service running there?", error);
    }

    static Throwable unwrapped(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }
}
