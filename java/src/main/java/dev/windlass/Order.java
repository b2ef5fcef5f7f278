package dev.windlass;

import java.util.Map;

/**
 * One HTTP request, whichever site it goes to.
 *
 * @param path of the route
 * @param body JSON to post; null asks with GET
 * @param idempotencyKey under which the service answers once, however often it is asked; or null
 * @param streams whether the answer comes as server-sent events
 * @param isBegun whether some of the answer was told before, so that only the same version can go on
 */
record Order(String path, String body, String idempotencyKey, boolean streams, boolean isBegun) {
    static Order get(String path) {
        return new Order(path, null, null, false, false);
    }

    static Order post(String path, Map<String, Object> body) {
        return new Order(path, Json.write(body), null, false, false);
    }

    /** Posts work that shall be done once. */
    static Order once(String path, Map<String, Object> body, String idempotencyKey) {
        return new Order(path, Json.write(body), idempotencyKey, false, false);
    }

    static Order streaming(String path, Map<String, Object> body, boolean isBegun) {
        return new Order(path, Json.write(body), null, true, isBegun);
    }
}
