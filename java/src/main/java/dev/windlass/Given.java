package dev.windlass;

import java.net.URI;
import java.time.Duration;

/** Checks the settings of a client, once, before any request is made. */
final class Given {
    private Given() {}

    /** Reads the address of a site; a path in front of the API's own is kept, a slash at the end is not. */
    static URI site(String address) {
        URI uri;
        try {
            uri = URI.create(address.strip().replaceAll("/+$", ""));
        } catch (IllegalArgumentException error) {
            throw wrong(address);
        }
        boolean isHttp = "http".equalsIgnoreCase(uri.getScheme()) || "https".equalsIgnoreCase(uri.getScheme());
        boolean isPlain = uri.getUserInfo() == null && uri.getQuery() == null && uri.getFragment() == null;
        if (!isHttp || uri.getHost() == null || !isPlain) {
            throw wrong(address);
        }
        return uri;
    }

    /** Checks a key, and tells nobody what it is: the HTTP client's own complaint would. */
    static String key(String key) {
        if (!key.chars().allMatch(c -> c > ' ' && c < 0x7f)) {
            throw new IllegalArgumentException("the key holds characters that no key has; was it copied whole?");
        }
        return key;
    }

    static Duration positive(Duration duration, String what) {
        if (duration.isZero() || duration.isNegative()) {
            throw new IllegalArgumentException(what + " is " + duration + "; it must be longer than nothing");
        }
        return duration;
    }

    private static IllegalArgumentException wrong(String address) {
        // Without the address where it holds a password.
        String shown = address.contains("@") ? "an address" : "'" + address + "'";
        return new IllegalArgumentException(
                shown + " is no site; it must be like http://127.0.0.1:8000, without user, query and fragment");
    }
}
