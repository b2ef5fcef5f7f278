package dev.windlass;

import java.time.Instant;
import java.util.List;

/**
 * A model that is served. What depends on the engine is null until one has introduced itself.
 *
 * @param id NAME@VERSION, or NAME:ADAPTER
 * @param created when it was registered
 * @param parent the model that an adapter changes, or null
 * @param contextLength tokens of prompt and answer together, or null
 * @param parameters how many weights, or null
 * @param family such as llama, or null
 */
public record Model(
        String id, Instant created, String parent, Integer contextLength, Long parameters, String family) {
    static List<Model> listOf(Fields reply) {
        return reply.objects("data").stream().map(Model::of).toList();
    }

    private static Model of(Fields entry) {
        return new Model(
                entry.text("id"),
                Instant.ofEpochSecond(entry.whole("created")),
                entry.textOr("parent", null),
                entry.countOrNull("context_length"),
                entry.wholeOrNull("parameters"),
                entry.textOr("family", null));
    }
}
