package dev.windlass;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * The members of a JSON object of a reply, read by name and type.
 *
 * <p>Members that nobody asks for are left alone, so that a newer service may say more. One that is asked for
 * and is absent or of another type is a {@link ReplyException}, which names its place.
 */
final class Fields {
    private final Map<?, ?> members;
    private final String where;

    private Fields(Map<?, ?> members, String where) {
        this.members = members;
        this.where = where;
    }

    static Fields of(Object value) {
        return of(value, "$");
    }

    private static Fields of(Object value, String where) {
        if (value instanceof Map<?, ?> members) {
            return new Fields(members, where);
        }
        throw new ReplyException(where + " is " + shown(value) + ", not an object", null);
    }

    /** Returns the members of an object that Json.read made. */
    @SuppressWarnings("unchecked") // it makes no maps with other names
    static Map<String, Object> members(Object value) {
        return (Map<String, Object>) of(value).members;
    }

    boolean has(String name) {
        return members.get(name) != null;
    }

    String text(String name) {
        return typed(name, String.class, "a text");
    }

    String textOr(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    boolean flag(String name) {
        return typed(name, Boolean.class, "true or false");
    }

    long whole(String name) {
        return typed(name, Long.class, "a whole number");
    }

    Integer countOrNull(String name) {
        return has(name) ? (Integer) (int) whole(name) : null;
    }

    Long wholeOrNull(String name) {
        return has(name) ? (Long) whole(name) : null;
    }

    double number(String name) {
        return typed(name, Number.class, "a number").doubleValue();
    }

    Double numberOrNull(String name) {
        return has(name) ? (Double) number(name) : null;
    }

    Fields object(String name) {
        return of(members.get(name), where + "." + name);
    }

    /** Returns the members of an object as they are, or null. */
    @SuppressWarnings("unchecked") // Json.read makes no other maps
    Map<String, Object> valuesOrNull(String name) {
        return has(name) ? typed(name, Map.class, "an object") : null;
    }

    List<Fields> objects(String name) {
        List<?> items = typed(name, List.class, "a list");
        List<Fields> found = new ArrayList<>();
        for (Object item : items) {
            found.add(of(item, where + "." + name + "[" + found.size() + "]"));
        }
        return found;
    }

    List<Fields> objectsOrNone(String name) {
        return has(name) ? objects(name) : List.of();
    }

    /** Returns a list whose items are all of one type; null stands for itself. */
    <T, R> List<R> list(String name, Class<T> type, Function<T, R> made) {
        List<R> found = new ArrayList<>();
        for (Object item : typed(name, List.class, "a list")) {
            String place = where + "." + name + "[" + found.size() + "]";
            found.add(item == null ? null : made.apply(cast(item, type, "a " + type.getSimpleName(), place)));
        }
        return found;
    }

    private <T> T typed(String name, Class<T> type, String what) {
        return cast(members.get(name), type, what, where + "." + name);
    }

    private static <T> T cast(Object value, Class<T> type, String what, String place) {
        if (!type.isInstance(value)) {
            throw new ReplyException(place + " is " + shown(value) + ", not " + what, null);
        }
        return type.cast(value);
    }

    private static String shown(Object value) {
        String text = Json.write(value);
        return text.length() <= 60 ? text : text.substring(0, 60) + "...";
    }
}
