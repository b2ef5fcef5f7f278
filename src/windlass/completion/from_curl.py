"""Completes curl commands: the address, header, option or body at the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.completion import kinds
from windlass.completion.addresses import addresses, header_values, near_path
from windlass.completion.bodies import BodySuggestions, in_body, whole_call
from windlass.completion.curl_text import Command, header_name, read_command
from windlass.completion.fill import Filler
from windlass.completion.json_text import read_value
from windlass.completion.rank import ranked
from windlass.completion.schema import ApiDocument, Operation
from windlass.completion.shell_text import quoted
from windlass.completion.suggestions import Explanation, Fix, Suggestion, Suggestions, put_all
from windlass.completion.tree import plain
from windlass.completion.write import KEY

OPTIONS = {
    "-H": "send a header",
    "-d": "send a body",
    "-N": "show a stream while it comes",
    "-X": "the method, where it is not POST",
    "-s": "no progress meter",
    "-i": "show the answer's headers",
    "-k": "accept any certificate",
    "--max-time": "give up after so many seconds",
    "--data": "send a body",
    "--json": "send a body of JSON, with its headers",
}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def complete_curl(text: str, cursor: int, filler: Filler, server: str) -> Suggestions:
    """Suggest what can follow in a command."""
    before, whole = read_command(text[:cursor]), read_command(text)
    operation = filler.api.find(whole.path, whole.method) if whole.path else None
    part = _body(before, whole, filler, operation)
    operation = operation or (part.operation if part is not None else _likely(whole, filler, server))
    curl = Curl(filler.api, filler.models, server, cursor, before, whole, operation)
    typing = part is not None and before.role == "body" and before.body is not None
    candidates = part.candidates if part is not None and typing else curl.candidates()
    explains = part.explains if part is not None and typing else curl.explains(candidates)
    fixes = [*(part.fixes if part is not None else ()), *curl.fixes()]
    fixed = put_all(text, fixes)
    return Suggestions(
        kinds.CURL,
        operation.method if operation is not None else whole.method,
        operation.path if operation is not None else whole.path,
        tuple(candidates),
        tuple(fixes),
        fixed,
        explains,
        _call(read_command(fixed), operation, filler, server),
    )


def _likely(command: Command, filler: Filler, server: str) -> Operation | None:
    """Return the operation of the path that is most likely meant."""
    found = addresses(filler.api, filler.models, server, command.url.text if command.url is not None else "")
    return filler.api.find(found[0].path, command.method) if found else None


def _body(
    before: Command, whole: Command, filler: Filler, operation: Operation | None
) -> BodySuggestions | None:
    """Complete the body, unless it is in a file."""
    if whole.body is None or whole.body.text.startswith("@"):
        return None
    typing = before.role == "body" and before.body is not None
    place = len(before.body.text) if typing and before.body is not None else len(whole.body.text)
    return in_body(whole.body, place, filler, operation)


def _call(command: Command, operation: Operation | None, filler: Filler, server: str) -> dict[str, str]:
    body = plain(read_value(command.body.text)[0]) if command.body is not None else None
    own = {"authorization", "content-type", "accept", ""}
    pairs = [word.text.removeprefix("-H").partition(":") for word in command.headers]
    known = [each.name.lower() for each in operation.headers] if operation is not None else []
    sent = {
        name.strip(): value.strip() for name, _, value in pairs if name.strip().lower() in set(known) - own
    }
    base = command.base if command.path else ""
    return whole_call(operation, body, filler, base or server, path=command.path, headers=sent)


@dataclass(frozen=True)
class Curl:
    """Suggests words of a command, except inside its body."""

    api: ApiDocument
    models: Sequence[str]
    server: str
    cursor: int
    command: Command
    """Up to the cursor."""
    whole: Command
    operation: Operation | None

    def candidates(self) -> list[Suggestion]:
        typed = self.command.word.text if self.command.word is not None else ""
        match self.command.role:
            case "url":
                found = addresses(self.api, self.models, self.server, typed)
                return [self._word(each.path, f"{quoted(each.url)} ", each.about) for each in found]
            case "header":
                return self._headers(typed)
            case "method":
                return [self._word(each, each) for each in ranked(typed.removeprefix("-X").upper(), METHODS)]
            case "option":
                return [self._word(each, f"{each} ", OPTIONS[each]) for each in ranked(typed, list(OPTIONS))]
            case "next":
                return self._next()
            case "body":
                return [self._word("{", "'{", "the body begins")]
            case "command":
                return [self._word("curl", "curl ", "ask over HTTP")]
        return []

    def explains(self, candidates: Sequence[Suggestion]) -> Explanation | None:
        if self.command.role == "header" and self.command.word is not None and self.operation is not None:
            for each in self.operation.headers:
                if each.name.lower() == header_name(self.command.word.text):
                    return Explanation(
                        each.name, each.type, each.range, each.default, each.about, each.required
                    )
        if self.operation is not None and self.whole.url is not None:
            return Explanation(self.operation.path, self.operation.method, about=self.operation.about)
        first = candidates[0] if candidates else None
        return Explanation(first.text, about=first.about) if first is not None and first.about else None

    def fixes(self) -> list[Fix]:
        """Correct the path, and add missing quotes."""
        return [*self._path_fixes(), *self._quote_fixes()]

    def _path_fixes(self) -> list[Fix]:
        url, path = self.whole.url, self.whole.path
        near = near_path(self.api, path)
        if url is None or near is None or self.command.role == "url":
            return []
        start = len(self.whole.base)
        insert, place = url.piece().put(near, (start, start + len(path)))
        return [Fix(f"there is no path {path}; {near} is meant", insert, place)]

    def _quote_fixes(self) -> list[Fix]:
        body, last = self.whole.body_word, self.whole.word
        found = []
        if body is not None and body.text.startswith("{") and not body.quote:
            about = "a body needs quotes, or the shell takes it apart"
            found += [Fix(about, "'", (body.start, body.start)), Fix(about, "'", (body.end, body.end))]
        if last is not None and not last.closed:
            found.append(Fix("a quote is missing", last.quote, (last.end, last.end)))
        return found

    def _headers(self, typed: str) -> list[Suggestion]:
        given = [name for name in self.command.header_names if name != header_name(typed)]
        lines = self._lines(given)
        return [self._word(line, _header_word(line), lines[line]) for line in ranked(typed, list(lines))]

    def _lines(self, given: Sequence[str]) -> dict[str, str]:
        """Return the headers that may be sent, as they are sent, with what they are for."""
        headers = header_values(self.operation, f"${KEY}")
        return {f"{name}: {value}": about for name, (value, about) in headers.items() if name not in given}

    def _next(self) -> list[Suggestion]:
        """Offer what a command still lacks, in the order in which people type it."""
        if self.whole.url is None:
            found = addresses(self.api, self.models, self.server, "")
            return [self._word(each.path, f"{quoted(each.url)} ", each.about) for each in found]
        lines = self._lines(self.whole.header_names)
        needed = [line for line in lines if self._needs(header_name(line))]
        offered = [self._header(line, lines[line]) for line in needed]
        if self._takes_body() and self.whole.body is None:
            offered.append(self._word("-d", "-d '{", OPTIONS["-d"]))
        offered += [self._header(line, about) for line, about in lines.items() if line not in needed]
        rest = [name for name in OPTIONS if name not in self.whole.options and name not in ("-H", "-d", "-X")]
        return [*offered, *(self._word(name, f"{name} ", OPTIONS[name]) for name in rest)]

    def _needs(self, header: str) -> bool:
        if header == "authorization":
            return self.operation is not None and self.operation.needs_key
        return header == "content-type" and self._takes_body() and "--json" not in self.whole.options

    def _takes_body(self) -> bool:
        return self.operation is not None and self.operation.body is not None

    def _header(self, line: str, about: str) -> Suggestion:
        return self._word(f"-H {line}", f"-H {_header_word(line)} ", about)

    def _word(self, text: str, insert: str, about: str = "") -> Suggestion:
        """Offer a word in the place of the one that is being typed."""
        word = self.command.word
        if word is None:
            return Suggestion(text, insert, (self.cursor, self.cursor), about=about)
        seen = [self.whole.url, self.whole.word, self.whole.body_word, *self.whole.headers]
        end = next((each.end for each in seen if each is not None and each.start == word.start), self.cursor)
        return Suggestion(text, insert, (word.start, max(end, self.cursor)), about=about)


def _header_word(line: str) -> str:
    return f'"{line}"' if "$" in line else f"'{line}'"
