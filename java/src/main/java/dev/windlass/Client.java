package dev.windlass;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;

/**
 * Asks a Windlass service, at one site or several. One client serves any number of threads.
 *
 * <p>Every call has a deadline, which covers all that it does: failures that may pass are tried again with a
 * growing wait, or as the service says, or at once at another site, while the time lasts; the service is told how
 * much of it is left. A whole answer is asked for with an Idempotency-Key, so that one that got lost on its way
 * back is not computed twice. Blocking calls throw a {@link WindlassException}; the others complete with it.
 */
public final class Client implements AutoCloseable {
    private final Calls calls;

    Client(Calls calls) {
        this.calls = calls;
    }

    /**
     * Makes a client with the usual settings; the key is that of the environment variable WINDLASS_KEY.
     *
     * @param sites addresses such as {@code http://127.0.0.1:8000}, the preferred one first
     * @return to be closed
     */
    public static Client of(String... sites) {
        return builder().sites(sites).build();
    }

    /**
     * Begins a client with other settings.
     *
     * @return settings to be given, then {@link ClientBuilder#build}
     */
    public static ClientBuilder builder() {
        return new ClientBuilder();
    }

    /**
     * Returns a client with another deadline for each call, on the same connections; closing one closes both.
     *
     * @param deadline for all that a call does
     * @return a view of this client
     */
    public Client within(Duration deadline) {
        return new Client(calls.within(Given.positive(deadline, "deadline")));
    }

    /**
     * Continues a text with the usual settings.
     *
     * @param prompt a text
     * @return the answer
     */
    public Answer complete(String prompt) {
        return complete(CompletionRequest.of(prompt).build());
    }

    /**
     * Continues prompts.
     *
     * @param request prompts and settings
     * @return the answer
     */
    public Answer complete(CompletionRequest request) {
        return Waiting.on(completeAsync(request));
    }

    /**
     * Continues prompts, without waiting.
     *
     * @param request prompts and settings
     * @return the answer in the making; cancelling it stops the service's work
     */
    public CompletableFuture<Answer> completeAsync(CompletionRequest request) {
        return calls.answered(request, heard -> Answer.of(heard.fields()));
    }

    /**
     * Gives the answer to a single question.
     *
     * @param question of the user
     * @return the model's turn
     */
    public Answer chat(String question) {
        return chat(ChatRequest.of(Message.user(question)).build());
    }

    /**
     * Gives the next turn of a conversation.
     *
     * @param request turns and settings
     * @return the model's turn
     */
    public Answer chat(ChatRequest request) {
        return Waiting.on(chatAsync(request));
    }

    /**
     * Gives the next turn of a conversation, without waiting.
     *
     * @param request turns and settings
     * @return the model's turn in the making; cancelling it stops the service's work
     */
    public CompletableFuture<Answer> chatAsync(ChatRequest request) {
        return calls.answered(request, heard -> Answer.of(heard.fields()));
    }

    /**
     * Reads an answer while it is made. It resumes by itself after a broken connection: for that it is asked for
     * with a seed, one of chance where the request has none.
     *
     * @param request a completion or a chat
     * @return to be closed, which stops the service's work
     */
    public PieceStream stream(Generation request) {
        return calls.stream(request);
    }

    /**
     * Offers an answer piece by piece, to be read without waiting.
     *
     * @param request a completion or a chat
     * @return asks anew for each subscriber, once it requests its first piece
     */
    public Flow.Publisher<Piece> publish(Generation request) {
        return calls.publish(request);
    }

    /**
     * Turns texts into unit vectors.
     *
     * @param texts one or more
     * @return a vector for each
     */
    public Embeddings embed(String... texts) {
        return embed(EmbeddingRequest.of(texts));
    }

    /**
     * Turns inputs into unit vectors.
     *
     * @param request inputs
     * @return a vector for each
     */
    public Embeddings embed(EmbeddingRequest request) {
        return Waiting.on(embedAsync(request));
    }

    /**
     * Turns inputs into unit vectors, without waiting.
     *
     * @param request inputs
     * @return vectors in the making
     */
    public CompletableFuture<Embeddings> embedAsync(EmbeddingRequest request) {
        return calls.answered(request, heard -> Embeddings.of(heard.fields()));
    }

    /**
     * Lists what is served.
     *
     * @return models, each followed by its adapters
     */
    public List<Model> models() {
        return Waiting.on(modelsAsync());
    }

    /**
     * Lists what is served, without waiting.
     *
     * @return models in the making
     */
    public CompletableFuture<List<Model>> modelsAsync() {
        return calls.models();
    }

    /**
     * Shows the tokens of a text, as the client's own model reads it.
     *
     * @param text a prompt
     * @return its tokens
     */
    public Tokens tokenize(String text) {
        return Waiting.on(tokenizeAsync(null, text));
    }

    /**
     * Shows the tokens of a conversation, as the client's own model reads it.
     *
     * @param messages the turns
     * @return the tokens, with those of the chat template
     */
    public Tokens tokenize(List<Message> messages) {
        return Waiting.on(tokenizeAsync(null, messages));
    }

    /**
     * Shows the tokens of a text, without waiting.
     *
     * @param model whose tokenizer, or null for the client's own
     * @param text a prompt
     * @return its tokens in the making
     */
    public CompletableFuture<Tokens> tokenizeAsync(String model, String text) {
        return calls.posted(model, "/v1/tokenize", Map.of("text", text), heard -> Tokens.of(heard.fields()));
    }

    /**
     * Shows the tokens of a conversation, without waiting.
     *
     * @param model whose tokenizer and template, or null for the client's own
     * @param messages the turns
     * @return the tokens in the making
     */
    public CompletableFuture<Tokens> tokenizeAsync(String model, List<Message> messages) {
        List<?> turns = messages.stream().map(Message::value).toList();
        return calls.posted(model, "/v1/tokenize", Map.of("messages", turns), heard -> Tokens.of(heard.fields()));
    }

    /**
     * Writes the text that token ids of the client's own model stand for.
     *
     * @param ids as {@link #tokenize} gives them
     * @return the text; ids that stand for none leave none
     */
    public String detokenize(List<Integer> ids) {
        return Waiting.on(detokenizeAsync(null, ids));
    }

    /**
     * Writes the text that token ids stand for, without waiting.
     *
     * @param model whose tokenizer, or null for the client's own
     * @param ids as {@link #tokenize} gives them
     * @return the text in the making
     */
    public CompletableFuture<String> detokenizeAsync(String model, List<Integer> ids) {
        return calls.posted(model, "/v1/detokenize", Map.of("tokens", ids), heard -> heard.fields().text("text"));
    }

    /**
     * Says what would become of a request: its tokens, whether it fits, how long it would take.
     *
     * @param request of any kind
     * @return a refusal is told, not thrown
     */
    public DryRun dryRun(Request request) {
        return Waiting.on(dryRunAsync(request));
    }

    /**
     * Says what would become of a request, without waiting.
     *
     * @param request of any kind
     * @return what would become of it, in the making
     */
    public CompletableFuture<DryRun> dryRunAsync(Request request) {
        return calls.tried(request);
    }

    /** Ends what is under way, streams included; later calls are refused. */
    @Override
    public void close() {
        calls.close();
    }
}
