package dev.windlass;

import java.net.URI;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * Which of several sites is asked next. Their order is the order of preference.
 *
 * <p>A site that failed rests for a while and is passed over; where all rest, the one that is ready first is asked.
 * The first of the list is therefore asked again by itself once it has rested.
 */
final class Sites {
    static final Duration REST = Duration.ofSeconds(10);

    private final List<URI> sites;
    private final LongSupplier nanos;
    private final Map<URI, Long> restsUntil = new HashMap<>();
    private final Set<URI> keyless = new HashSet<>();

    Sites(List<URI> sites, LongSupplier nanos) {
        this.sites = sites;
        this.nanos = nanos;
    }

    synchronized URI best() {
        URI soonest = sites.get(0);
        for (URI site : sites) {
            if (!rests(site)) {
                return site;
            }
            if (restsUntil.get(site) - restsUntil.get(soonest) < 0) {
                soonest = site;
            }
        }
        return soonest;
    }

    /** Tells whether some other site could be asked at once. */
    synchronized boolean hasOther(URI site) {
        return sites.stream().anyMatch(other -> !other.equals(site) && !rests(other));
    }

    /** Lets a site rest, for as long as it asked for if it asked. */
    synchronized void failed(URI site, Duration asked) {
        Duration rest = asked.isZero() ? REST : asked;
        restsUntil.put(site, nanos.getAsLong() + rest.toNanos());
    }

    synchronized void answered(URI site) {
        restsUntil.remove(site);
    }

    /** Notes that a site keeps no state, and so takes no Idempotency-Key. */
    synchronized void takesNoKeys(URI site) {
        keyless.add(site);
    }

    synchronized boolean takesKeys(URI site) {
        return !keyless.contains(site);
    }

    private boolean rests(URI site) {
        Long until = restsUntil.get(site);
        return until != null && nanos.getAsLong() - until < 0;
    }
}
