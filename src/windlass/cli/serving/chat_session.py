"""A conversation in the terminal: its turns, its commands, and what Ctrl-C does.

Input: lines, from a keyboard or a pipe. Output: answers, written piece by piece. The model runs elsewhere:
a session only talks to a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.sdk.replies import Completion
from windlass.spec.errors import WindlassError, did_you_mean

COMMANDS = {
    "/help": "list these commands",
    "/reset": "forget the conversation; the system prompt stays",
    "/system": "/system TEXT sets the system prompt and begins anew; without TEXT it shows it",
    "/exit": "end the chat (also Ctrl-D)",
}
HINT = "Ctrl-C stops an answer, Ctrl-D ends, /help lists commands"
PROMPT = ">>> "
INTERRUPTED = "interrupted"
MAX_HISTORY = 1000

Write = Callable[[str], None]


@dataclass
class ChatSession:
    """The turns so far, and the settings of every answer."""

    stream_chat: Callable[..., Any]
    """That of windlass.sdk.Client: takes turns and settings, returns a Stream of pieces."""
    settings: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    def answer(self, text: str, write: Write) -> Completion:
        """Ask for the next turn and write it as it comes. After an error the question is forgotten.

        Ctrl-C ends the answer, also at the server; what was written of it stays in the conversation.
        """
        question = {"role": "user", "content": text}
        first = [{"role": "system", "content": self.system}] if self.system else []
        pieces: list[str] = []
        try:
            with self.stream_chat([*first, *self.turns, question], **self.settings) as stream:
                for piece in stream:
                    pieces.append(piece)
                    write(piece)
            done: Completion = stream.result
        except KeyboardInterrupt:
            done = Completion("".join(pieces), INTERRUPTED, 0, 0, "", "")
        self.turns += [question, {"role": "assistant", "content": done.text}]
        return done

    def command(self, line: str) -> str | None:
        """Carry out a line that begins with a slash; return what to say, or None to end the chat."""
        name, _, rest = line.partition(" ")
        if name in ("/exit", "/quit", "/bye"):
            return None
        if name == "/help":
            return "\n".join(f"{each:<8}  {about}" for each, about in COMMANDS.items())
        if name == "/reset":
            self.turns.clear()
            return "the conversation is forgotten"
        if name == "/system":
            if not rest.strip():
                return f"system prompt: {self.system}" if self.system else "there is no system prompt"
            self.system = rest.strip()
            self.turns.clear()
            return "the conversation begins anew with this system prompt"
        return f"{name} is not a command: {did_you_mean(name, list(COMMANDS))}"


def run_terminal(session: ChatSession, read: Callable[[str], str], write: Write) -> None:
    """Converse until Ctrl-D, /exit, or a Ctrl-C that follows another."""
    was_interrupted = False
    while True:
        try:
            line = read(PROMPT).strip("\r\n")
            was_interrupted = False
            if line.startswith("/"):
                said = session.command(line.rstrip())
                if said is None:
                    return
                write(f"{said}\n")
            elif line.strip():
                was_interrupted = _answered(session, line.strip(), write)
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:  # at the prompt, or between it and an answer
            write("\n")
            if was_interrupted:
                return
            was_interrupted = True
            write("(Ctrl-C again or Ctrl-D ends)\n")


def run_lines(
    session: ChatSession, lines: Iterator[str], write: Write, on_done: Callable[[str, Completion], None]
) -> None:
    """Answer each line of a pipe, as turns of one conversation. An error ends it."""
    for line in lines:
        text = line.rstrip("\r\n")
        if text.startswith("/"):
            if session.command(text) is None:
                return
        elif text.strip():
            done = session.answer(text.strip(), write)
            on_done(text.strip(), done)
            if done.finish == INTERRUPTED:
                raise KeyboardInterrupt


@contextmanager
def line_history(file: Path) -> Iterator[None]:
    """Let `input` edit lines and remember them, in a file that no other user can read."""
    try:
        import readline
    except ImportError:  # Python was built without it: lines can be typed, but not edited
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    readline.read_history_file(file)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        readline.write_history_file(file)


def _answered(session: ChatSession, text: str, write: Write) -> bool:
    """Answer one line; return whether Ctrl-C ended it. An error is a sentence: the chat continues."""
    try:
        done = session.answer(text, write)
    except WindlassError as error:
        write(f"({error})\n")
        return False
    write(" (stopped)\n" if done.finish == INTERRUPTED else "\n")
    if done.finish == "length":
        write("(the answer reached its limit; --tokens N allows more, /reset makes room)\n")
    return done.finish == INTERRUPTED
