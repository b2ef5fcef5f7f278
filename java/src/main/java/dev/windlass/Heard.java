package dev.windlass;

import java.net.URI;
import java.net.http.HttpHeaders;
import java.net.http.HttpResponse.BodySubscriber;
import java.net.http.HttpResponse.BodySubscribers;
import java.net.http.HttpResponse.ResponseInfo;
import java.time.Duration;

/**
 * What a site answered.
 *
 * @param site which
 * @param status of HTTP
 * @param headers of HTTP
 * @param whole the body, unless it is a stream
 * @param arriving the body of a stream, else null
 */
record Heard(URI site, int status, HttpHeaders headers, byte[] whole, Arrivals arriving) {
    private static final int OK = 200;

    private static final String NO_KEY = "; set WINDLASS_KEY or give the client a key";

    /** A long wait that a header asks for is bounded, so that sums of it never overflow. */
    private static final long MAX_WAIT_S = 10_000_000;

    /** Chooses how a body is received; a refusal is whole even where a stream was asked for. */
    static BodySubscriber<Heard> subscriber(ResponseInfo info, URI site, boolean streams) {
        if (streams && info.statusCode() == OK) {
            Arrivals arrivals = new Arrivals();
            return BodySubscribers.mapping(arrivals, body -> new Heard(site, OK, info.headers(), null, body));
        }
        return BodySubscribers.mapping(
                BodySubscribers.ofByteArray(), body -> new Heard(site, info.statusCode(), info.headers(), body, null));
    }

    boolean isGood() {
        return status == OK;
    }

    Fields fields() {
        try {
            return Fields.of(Json.read(whole));
        } catch (JsonException error) {
            throw new ReplyException("the answer is not JSON", error);
        }
    }

    /** Returns what a refusal is raised as; pages of proxies in between count as a site out of reach. */
    WindlassException refusal(boolean hasKey) {
        try {
            Refusal told = Refusal.of(fields().object("error"), site);
            boolean isKeyMissing = told.code().equals("unauthorized") && !hasKey;
            return new ServiceException(status, told, isKeyMissing ? NO_KEY : "", retryAfter());
        } catch (ReplyException foreign) {
            String message = site + ": answered " + status + ", and not as Windlass does";
            boolean passes = status == 429 || status >= 500;
            return passes ? new UnreachableException(message, foreign) : new ReplyException(message, foreign);
        }
    }

    /** Windlass sends whole seconds; a date, as proxies may send, is left to the back-off. */
    private Duration retryAfter() {
        return headers.firstValue("retry-after")
                .filter(text -> text.matches("[0-9]{1,18}"))
                .map(text -> Duration.ofSeconds(Math.min(Long.parseLong(text), MAX_WAIT_S)))
                .orElse(null);
    }
}
