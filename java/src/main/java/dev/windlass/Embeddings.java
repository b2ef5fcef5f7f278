package dev.windlass;

import java.util.List;

/**
 * Unit vectors, one for each input.
 *
 * @param model the version that answered
 * @param vectors in the order of the inputs
 * @param usage what it took
 */
public record Embeddings(String model, List<List<Double>> vectors, Usage usage) {
    static Embeddings of(Fields reply) {
        List<List<Double>> vectors = reply.objects("data").stream()
                .map(each -> List.copyOf(each.list("embedding", Number.class, Number::doubleValue)))
                .toList();
        return new Embeddings(reply.text("model"), vectors, Usage.of(reply.object("usage")));
    }
}
