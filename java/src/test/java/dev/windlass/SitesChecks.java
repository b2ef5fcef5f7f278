package dev.windlass;

import static dev.windlass.Checks.equal;
import static dev.windlass.Checks.holds;
import static dev.windlass.Checks.thrown;

import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

final class SitesChecks {
    private static final URI FIRST = URI.create("http://first:1");
    private static final URI SECOND = URI.create("http://second:2");

    private SitesChecks() {}

    static void run(Checks checks) {
        checks.check("the first site is preferred, and again after its rest", () -> {
            AtomicLong clock = new AtomicLong(-7);
            Sites sites = new Sites(List.of(FIRST, SECOND), clock::get);
            equal(sites.best(), FIRST);
            sites.failed(FIRST, Duration.ZERO);
            equal(sites.best(), SECOND);
            clock.addAndGet(Sites.REST.toNanos());
            equal(sites.best(), FIRST);
        });
        checks.check("a site that answers has rested enough", () -> {
            Sites sites = new Sites(List.of(FIRST, SECOND), () -> 0);
            sites.failed(FIRST, Duration.ofHours(1));
            sites.answered(FIRST);
            equal(sites.best(), FIRST);
        });
        checks.check("where all rest, the one that is ready first is asked", () -> {
            Sites sites = new Sites(List.of(FIRST, SECOND), () -> 0);
            sites.failed(FIRST, Duration.ofSeconds(30));
            sites.failed(SECOND, Duration.ofSeconds(3));
            equal(sites.best(), SECOND);
            holds(!sites.hasOther(SECOND), "no other is ready");
        });
        checks.check("a lonely site is asked whatever it did", () -> {
            Sites sites = new Sites(List.of(FIRST), () -> 0);
            sites.failed(FIRST, Duration.ZERO);
            equal(sites.best(), FIRST);
            holds(!sites.hasOther(FIRST), "there is no other");
        });
        checks.check("addresses are checked, and passwords in them not shown", () -> {
            equal(Given.site("http://h:1/"), URI.create("http://h:1"));
            equal(Given.site("https://h/api"), URI.create("https://h/api"));
            for (String wrong : List.of("", "h:1", "ftp://h", "http://", "http://h?x=1", "http://h#f", "http://a b")) {
                thrown(IllegalArgumentException.class, () -> Given.site(wrong));
            }
            String told = thrown(IllegalArgumentException.class, () -> Given.site("http://me:hush@h")).getMessage();
            holds(!told.contains("hush"), told);
        });
        checks.check("a key with a line end is refused and not shown", () -> {
            String told = thrown(IllegalArgumentException.class, () -> Given.key("wlk_hush\nx: y")).getMessage();
            holds(!told.contains("hush"), told);
        });
    }
}
