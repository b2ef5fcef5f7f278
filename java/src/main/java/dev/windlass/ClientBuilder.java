package dev.windlass;

import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.ssl.SSLContext;

/** Gathers the settings of a client. */
public final class ClientBuilder {
    private static final Duration DEADLINE = Duration.ofMinutes(10);
    private static final Duration SILENCE = Duration.ofSeconds(25);
    private static final Duration FIRST_WAIT = Duration.ofMillis(250);
    private static final Duration LONGEST_WAIT = Duration.ofSeconds(8);
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int RETRIES = 4;
    private static final String KEY_VARIABLE = "WINDLASS_KEY";

    private final List<URI> sites = new ArrayList<>();
    private String key = System.getenv(KEY_VARIABLE);
    private String model;
    private Duration deadline = DEADLINE;
    private Duration silence = SILENCE;
    private int retries = RETRIES;
    private SSLContext tls;

    ClientBuilder() {}

    /**
     * Adds sites, in the order in which they are preferred.
     *
     * @param addresses such as {@code https://eu.example:8000}
     * @return this
     */
    public ClientBuilder sites(String... addresses) {
        for (String address : addresses) {
            sites.add(Given.site(address));
        }
        return this;
    }

    /**
     * Sets the key; without it the environment variable WINDLASS_KEY is looked at.
     *
     * @param key as {@code windlass keys make} printed it; null for none
     * @return this
     */
    public ClientBuilder key(String key) {
        this.key = key;
        return this;
    }

    /**
     * Sets the model of requests that name none; without it the first one that is served.
     *
     * @param name NAME, NAME@VERSION or NAME:ADAPTER
     * @return this
     */
    public ClientBuilder model(String name) {
        model = name;
        return this;
    }

    /**
     * Bounds everything that a call does: tries, waits, and the reading of a stream. Usually 10 minutes.
     *
     * @param deadline for each call
     * @return this
     */
    public ClientBuilder deadline(Duration deadline) {
        this.deadline = Given.positive(deadline, "deadline");
        return this;
    }

    /**
     * Sets how often a call is tried again, counted anew whenever a stream goes on. Usually 4.
     *
     * @param most 0 for never
     * @return this
     */
    public ClientBuilder retries(int most) {
        if (most < 0) {
            throw new IllegalArgumentException("retries is " + most + "; it must be 0 or more");
        }
        retries = most;
        return this;
    }

    /**
     * Sets how long a stream may be silent before its connection counts as broken; the service sends a
     * comment every 10 s. Usually 25 s.
     *
     * @param silence longer than 10 s
     * @return this
     */
    public ClientBuilder silence(Duration silence) {
        this.silence = Given.positive(silence, "silence");
        return this;
    }

    /**
     * Sets whom to trust, for services with certificates of their own.
     *
     * @param context with its trust managers
     * @return this
     */
    public ClientBuilder tls(SSLContext context) {
        tls = context;
        return this;
    }

    /**
     * Makes the client; nothing is sent yet.
     *
     * @return to be closed
     */
    public Client build() {
        if (sites.isEmpty()) {
            throw new IllegalArgumentException("there is no site; give an address such as http://127.0.0.1:8000");
        }
        String checked = key == null || key.isBlank() ? null : Given.key(key.strip());
        Retries policy = new Retries(retries, FIRST_WAIT, LONGEST_WAIT, PATIENCE);
        Transport transport = new Transport(List.copyOf(sites), checked, policy, silence, tls);
        return new Client(new Calls(transport, deadline, new AtomicReference<>(model)));
    }
}
