package dev.windlass;

import java.util.List;
import java.util.Map;

/** What an answer must look like; the service lets the model write nothing else. */
public sealed interface Form {
    /** Any JSON object. */
    record AnyJson() implements Form {}

    /**
     * JSON by a schema; its properties are written in the schema's order.
     *
     * @param schema a JSON Schema, as {@link Json#read} makes it
     */
    record Schema(Map<String, Object> schema) implements Form {}

    /**
     * A text that an expression matches as a whole.
     *
     * @param expression a regular expression
     */
    record Regex(String expression) implements Form {}

    /**
     * One of some texts.
     *
     * @param texts to choose from
     */
    record Choice(List<String> texts) implements Form {
        /**
         * Takes a copy of the list.
         *
         * @param texts see the record
         */
        public Choice {
            texts = List.copyOf(texts);
        }
    }

    /**
     * Makes a form of a schema that is written as text.
     *
     * @param json a JSON Schema
     * @return the form
     */
    static Form schema(String json) {
        Object read = Json.read(json);
        if (!(read instanceof Map<?, ?>)) {
            throw new JsonException("a JSON Schema is an object");
        }
        return new Schema(Fields.members(read));
    }

    /**
     * Makes a form of texts to choose from.
     *
     * @param texts the only answers that there are
     * @return the form
     */
    static Form choice(String... texts) {
        return new Choice(List.of(texts));
    }

    /**
     * Adds the form to the body of a request.
     *
     * @param body gets one more member
     */
    default void addTo(Map<String, Object> body) {
        if (this instanceof Schema form) {
            body.put("guided_json", form.schema());
        } else if (this instanceof Regex form) {
            body.put("guided_regex", form.expression());
        } else if (this instanceof Choice form) {
            body.put("guided_choice", form.texts());
        } else {
            body.put("response_format", Map.of("type", "json_object"));
        }
    }
}
