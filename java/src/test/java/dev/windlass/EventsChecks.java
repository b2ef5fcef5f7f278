package dev.windlass;

import static dev.windlass.Checks.equal;
import static dev.windlass.Checks.thrown;

import dev.windlass.Events.Event;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

final class EventsChecks {
    private static final String STREAM = "\ufeff: waiting\r\n\r\n"
            + "data: {\"a\":\"\u6625\ud83d\ude00\"}\n\n"
            + "event: error\rdata:no blank\r\r"
            + "data: one\ndata:  two\ndata\nid: 7\nretry: 5\nunknown: x\n\n"
            + "event: nothing\n\n"
            + "data: last\r\n\r\n"
            + "data: torn\n";

    private static final List<Event> TOLD = List.of(
            new Event("message", "{\"a\":\"\u6625\ud83d\ude00\"}"),
            new Event("error", "no blank"),
            new Event("message", "one\n two\n"),
            new Event("message", "last"));

    private EventsChecks() {}

    static void run(Checks checks) {
        checks.check("events are read as the standard has them", () -> equal(read(STREAM, Integer.MAX_VALUE), TOLD));
        checks.check("it does not matter where the bytes are cut", () -> {
            for (int portion = 1; portion < 40; portion++) {
                equal(read(STREAM, portion), TOLD);
            }
        });
        checks.check("a comment says nothing", () -> equal(read(": waiting\n\n: waiting\n\n", 3), List.of()));
        checks.check("an event that is not ended is not told", () -> equal(read("data: torn", 4), List.of()));
        checks.check("bytes that are not UTF-8 are refused", () -> {
            byte[] broken = {'d', 'a', 't', 'a', ':', (byte) 0xff, '\n', '\n'};
            thrown(JsonException.class, () -> new Events().feed(ByteBuffer.wrap(broken)));
        });
        checks.check("a line without end is refused before it takes all memory", () -> {
            Events events = new Events();
            thrown(ReplyException.class, () -> {
                for (int portion = 0; portion < 20; portion++) {
                    events.feed(ByteBuffer.wrap(new byte[1 << 20]));
                }
            });
        });
    }

    private static List<Event> read(String text, int portion) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        Events events = new Events();
        List<Event> told = new ArrayList<>();
        for (int start = 0; start < bytes.length; start += Math.min(portion, bytes.length - start)) {
            told.addAll(events.feed(ByteBuffer.wrap(bytes, start, Math.min(portion, bytes.length - start))));
        }
        return told;
    }
}
