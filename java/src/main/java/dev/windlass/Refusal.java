package dev.windlass;

import java.net.URI;
import java.util.Map;

/**
 * The service's error envelope, word by word (docs/formats/api-errors.md).
 *
 * @param code what programs branch on, never renamed
 * @param type the family that OpenAI's clients know
 * @param message one line for people
 * @param param the place in the body, as {@code messages[0].content}, or null
 * @param path the same place as a JSON path, or null
 * @param allowed what may stand there, in keywords of JSON Schema, or null
 * @param corrected a whole body that would be accepted, or null
 * @param docUrl the page that explains the code, at the site that refused
 * @param requestId the id in the service's log
 */
public record Refusal(
        String code,
        String type,
        String message,
        String param,
        String path,
        Map<String, Object> allowed,
        Map<String, Object> corrected,
        String docUrl,
        String requestId) {

    static Refusal of(Fields error, URI site) {
        String page = error.textOr("doc_url", "");
        return new Refusal(
                error.text("code"),
                error.textOr("type", ""),
                error.text("message"),
                error.textOr("param", null),
                error.textOr("path", null),
                error.valuesOrNull("allowed"),
                error.valuesOrNull("corrected"),
                page.startsWith("/") ? site + page : page,
                error.textOr("request_id", ""));
    }
}
