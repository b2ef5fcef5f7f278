package dev.windlass;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/**
 * Runs the unit tests: named checks, one behaviour each, without a framework.
 *
 * <p>Prints each failure with its place, and ends with 1 if there was one.
 */
public final class Checks {
    /** What a check does; whatever it throws is its failure. */
    interface Body {
        void run() throws Exception;
    }

    private final List<String> failures = new ArrayList<>();
    private int passed;

    private Checks() {}

    /**
     * Runs all checks, or those whose names hold the argument.
     *
     * @param arguments at most one
     */
    public static void main(String[] arguments) {
        Checks checks = new Checks();
        JsonChecks.run(checks);
        EventsChecks.run(checks);
        RetriesChecks.run(checks);
        SitesChecks.run(checks);
        RetellingChecks.run(checks);
        RequestChecks.run(checks);
        checks.failures.forEach(System.err::println);
        System.out.println(checks.passed + " passed, " + checks.failures.size() + " failed");
        System.exit(checks.failures.isEmpty() ? 0 : 1);
    }

    void check(String name, Body body) {
        try {
            body.run();
            passed++;
        } catch (Exception | AssertionError error) {
            failures.add("FAILED " + name + "\n    " + error + "\n    at " + place(error));
        }
    }

    private static String place(Throwable error) {
        for (StackTraceElement frame : error.getStackTrace()) {
            if (frame.getClassName().endsWith("Checks") || frame.getClassName().contains("Checks$")) {
                if (!frame.getClassName().startsWith("dev.windlass.Checks")) {
                    return frame.toString();
                }
            }
        }
        return "an unknown place";
    }

    static void equal(Object found, Object wanted) {
        if (!Objects.equals(found, wanted)) {
            throw new AssertionError("found  " + found + "\n    wanted " + wanted);
        }
    }

    static void holds(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    /** Returns what is thrown; a check that expects a failure and gets none has failed. */
    static <T extends Throwable> T thrown(Class<T> type, Body body) {
        try {
            body.run();
        } catch (Exception error) {
            if (type.isInstance(error)) {
                return type.cast(error);
            }
            throw new AssertionError("threw " + error + ", not " + type.getSimpleName(), error);
        }
        throw new AssertionError("threw nothing, not " + type.getSimpleName());
    }
}
