import dev.windlass.Answer;
import dev.windlass.ChatRequest;
import dev.windlass.Client;
import dev.windlass.CompletionRequest;
import dev.windlass.Message;
import dev.windlass.Piece;
import dev.windlass.PieceStream;
import dev.windlass.ServiceException;

/**
 * From a key to a streamed answer.
 *
 * <pre>
 * java/build
 * export WINDLASS_KEY=wlk_...
 * java -cp java/out/windlass.jar java/examples/Quickstart.java http://127.0.0.1:8000 "Once upon a time"
 * </pre>
 */
public final class Quickstart {
    private Quickstart() {}

    /**
     * Asks a service in three ways.
     *
     * @param arguments the service's address, and a prompt
     */
    public static void main(String[] arguments) {
        String site = arguments.length > 0 ? arguments[0] : "http://127.0.0.1:8000";
        String prompt = arguments.length > 1 ? arguments[1] : "Once upon a time";
        try (Client client = Client.of(site)) {
            Answer answer = client.complete(CompletionRequest.of(prompt).maxTokens(30).temperature(0.7).build());
            System.out.println(answer.text());
            System.out.println(answer.usage().totalTokens() + " tokens by " + answer.model());

            try (PieceStream stream = client.stream(ChatRequest.of(Message.user(prompt)).maxTokens(30).build())) {
                for (Piece piece : stream) {
                    System.out.print(piece.text());
                    System.out.flush();
                }
                System.out.println();
            }
        } catch (ServiceException refused) {
            System.err.println(refused.getMessage());
            System.err.println("see " + refused.docUrl());
            System.exit(1);
        }
    }
}
