"""A conversation in the terminal: its commands, its turns and Ctrl-C."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.serving.chat_session import (
    ChatSession,
    line_history,
    run_lines,
    run_terminal,
)
from windlass.sdk.replies import Completion
from windlass.spec.errors import AskedWrongly


class ScriptedStream:
    """An answer of known pieces; an exception among them is raised when its turn comes."""

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = iter(pieces)
        self.result: Completion | None = None
        self.closed = False
        self.text = ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = next(self._pieces, None)
        if piece is None:
            self.result = Completion(self.text, "stop", 3, 2, "tiny@1")
            raise StopIteration
        if isinstance(piece, BaseException):
            raise piece
        self.text += piece
        return str(piece)

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


class ScriptedClient:
    """Gives the answers of a script; keeps what it was asked."""

    def __init__(self, *answers: list[Any]) -> None:
        self.requests: list[list[dict[str, str]]] = []
        self.settings: list[dict[str, Any]] = []
        self.streams = [ScriptedStream(pieces) for pieces in answers]
        self._next = iter(self.streams)

    def stream_chat(self, turns: Any, /, **settings: Any) -> ScriptedStream:
        self.requests.append([dict(turn) for turn in turns])
        self.settings.append(settings)
        return next(self._next)


def typed(*lines: Any) -> Callable[[str], str]:
    """Return what `input` would: the lines, then the end of the file."""
    waiting = iter(lines)

    def read(prompt: str) -> str:
        line = next(waiting, None)
        if line is None:
            raise EOFError
        if isinstance(line, type):
            raise line
        return str(line)

    return read


def conversed(session: ChatSession, *lines: Any) -> str:
    said: list[str] = []
    run_terminal(session, typed(*lines), said.append)
    return "".join(said)


def roles(turns: list[dict[str, str]]) -> list[str]:
    return [turn["role"] for turn in turns]


def test_every_turn_carries_the_conversation_so_far() -> None:
    client = ScriptedClient(["Hel", "lo."], ["Ada."])
    session = ChatSession(client.stream_chat, {"temperature": 0}, system="Be brief.")
    assert conversed(session, "I am Ada.", "", "Who am I?") == "Hello.\nAda.\n\n"
    assert client.requests[1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "I am Ada."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Who am I?"},
    ]
    assert client.settings == [{"temperature": 0}] * 2


def test_reset_forgets_the_turns_and_keeps_the_system_prompt() -> None:
    client = ScriptedClient(["a"], ["b"])
    conversed(ChatSession(client.stream_chat, system="Be brief."), "one", "/reset", "two")
    assert roles(client.requests[1]) == ["system", "user"]


def test_a_new_system_prompt_begins_anew() -> None:
    client = ScriptedClient(["a"], ["b"])
    session = ChatSession(client.stream_chat)
    said = conversed(session, "/system", "one", "/system Speak French.", "two", "/system")
    assert client.requests[1] == [
        {"role": "system", "content": "Speak French."},
        {"role": "user", "content": "two"},
    ]
    assert "there is no system prompt" in said
    assert "system prompt: Speak French." in said


def test_help_lists_the_commands_and_a_wrong_one_gets_the_nearest() -> None:
    said = conversed(ChatSession(ScriptedClient().stream_chat), "/help", "/rest", "/exit", "never asked")
    assert "/system TEXT sets the system prompt" in said
    assert "/rest is not a command: did you mean '/reset'?" in said


def test_ctrl_c_stops_an_answer_at_the_server_and_the_chat_continues() -> None:
    client = ScriptedClient(["Once ", KeyboardInterrupt()], ["b"])
    session = ChatSession(client.stream_chat)
    assert "Once  (stopped)\n" in conversed(session, "Tell me", "Go on")
    assert client.streams[0].closed
    assert client.requests[1][1] == {"role": "assistant", "content": "Once "}


def test_a_second_ctrl_c_ends_the_chat() -> None:
    client = ScriptedClient(["a"], ["b", KeyboardInterrupt()])
    assert "ends" in conversed(ChatSession(client.stream_chat), KeyboardInterrupt, "one", KeyboardInterrupt)
    assert "three" not in conversed(ChatSession(client.stream_chat), "two", KeyboardInterrupt, "three")
    assert len(client.requests) == 2


def test_an_error_is_a_sentence_and_its_question_is_forgotten() -> None:
    client = ScriptedClient([AskedWrongly("the conversation is too long")], ["b"])
    session = ChatSession(client.stream_chat)
    assert "(the conversation is too long)" in conversed(session, "one", "two")
    assert roles(client.requests[1]) == ["user"]


def test_lines_of_a_pipe_are_turns_and_their_answers_are_given_one_by_one() -> None:
    client = ScriptedClient(["a"], ["b"], ["c"])
    done: list[tuple[str, str]] = []
    run_lines(
        ChatSession(client.stream_chat),
        iter(["one\n", "\n", "two\n", "/reset\n", "three\n"]),
        lambda text: None,
        lambda prompt, answer: done.append((prompt, answer.text)),
    )
    assert done == [("one", "a"), ("two", "b"), ("three", "c")]
    assert [len(turns) for turns in client.requests] == [1, 3, 1]


def test_an_error_ends_a_pipe() -> None:
    session = ChatSession(ScriptedClient([AskedWrongly("too long")]).stream_chat)
    with pytest.raises(AskedWrongly):
        run_lines(session, iter(["one\n", "two\n"]), lambda text: None, lambda prompt, answer: None)


def test_the_history_of_lines_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    import readline

    file = tmp_path / "cache" / "chat-history"
    with line_history(file):
        readline.add_history("What is the capital of France?")
    assert "capital of France" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
