/**
 * Windlass from a Java program: completions, chat, embeddings, tokens, whole or as streams.
 *
 * <pre>{@code
 * try (Client client = Client.of("http://127.0.0.1:8000")) {      // the key is $WINDLASS_KEY
 *     System.out.println(client.complete("Once upon a time").text());
 *     try (PieceStream stream = client.stream(CompletionRequest.of("Once upon a time").maxTokens(50).build())) {
 *         stream.pieces().forEach(piece -> System.out.print(piece.text()));
 *     }
 * }
 * }</pre>
 *
 * <p>The path of a call: a request's record becomes JSON ({@link dev.windlass.Request}); {@code Asking} sends it,
 * asks {@code Retries} what to do about a failure and {@code Sites} where to go next, until the deadline; the
 * reply becomes a record again. Of a stream, {@code Arrivals} hands the bytes over, {@code Events} cuts them into
 * events, and {@code Retelling} makes an answer that was asked for twice look like one.
 *
 * <p>Start at {@link dev.windlass.Client}.
 */
package dev.windlass;
