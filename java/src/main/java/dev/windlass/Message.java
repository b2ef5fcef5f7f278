package dev.windlass;

import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;

/**
 * One turn of a conversation.
 *
 * @param role who speaks
 * @param content what is said
 * @param name of the speaker, or null
 */
public record Message(Role role, String content, String name) {
    /** Who speaks. */
    public enum Role {
        /** Instructions for the whole conversation. */
        SYSTEM,
        /** The same under its later name. */
        DEVELOPER,
        /** The one who asks. */
        USER,
        /** The model. */
        ASSISTANT
    }

    /**
     * Insists on a role and a content.
     *
     * @param role see the record
     * @param content see the record
     * @param name see the record
     */
    public Message {
        Objects.requireNonNull(role, "role");
        Objects.requireNonNull(content, "content");
    }

    /**
     * Makes a turn of the one who asks.
     *
     * @param content what is said
     * @return the turn
     */
    public static Message user(String content) {
        return new Message(Role.USER, content, null);
    }

    /**
     * Makes instructions for the whole conversation.
     *
     * @param content what is said
     * @return the turn
     */
    public static Message system(String content) {
        return new Message(Role.SYSTEM, content, null);
    }

    /**
     * Makes a turn of the model.
     *
     * @param content what is said
     * @return the turn
     */
    public static Message assistant(String content) {
        return new Message(Role.ASSISTANT, content, null);
    }

    Map<String, Object> value() {
        Map<String, Object> value = new LinkedHashMap<>();
        value.put("role", role.name().toLowerCase(Locale.ROOT));
        value.put("content", content);
        if (name != null) {
            value.put("name", name);
        }
        return value;
    }
}
