package dev.windlass;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** Makes blocking calls of those that are not. */
final class Waiting {
    private Waiting() {}

    /** Waits for a result; what went wrong is thrown as it is, with the stack of the one who waited. */
    static <T> T on(CompletableFuture<T> future) {
        try {
            return future.get();
        } catch (InterruptedException interrupted) {
            future.cancel(true);
            Thread.currentThread().interrupt();
            throw new StoppedException("interrupted while waiting for an answer", interrupted);
        } catch (ExecutionException failed) {
            throw thrown(failed.getCause());
        }
    }

    private static RuntimeException thrown(Throwable error) {
        if (error instanceof Error serious) {
            throw serious;
        }
        RuntimeException failure =
                error instanceof RuntimeException known ? known : new WindlassException(error.toString(), error);
        // It was made by a thread of the HTTP client, whose stack would tell the reader nothing.
        failure.setStackTrace(new Throwable().getStackTrace());
        return failure;
    }
}
