"""Completes windlass commands: the verb, option, value or name at the cursor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from windlass.completion import kinds
from windlass.completion.cli_text import PROGRAM, CommandOption, CommandText, Verbs
from windlass.completion.rank import ranked
from windlass.completion.shell_text import Word, quoted, read_words
from windlass.completion.suggestions import Explanation, Fix, Suggestion, Suggestions, put_all


def complete_cli(
    text: str, cursor: int | None = None, *, verbs: Verbs, names: Mapping[str, Sequence[str]]
) -> Suggestions:
    """Suggest what can follow in a command; `names` has the existing names by metavar."""
    place = len(text) if cursor is None else max(0, min(cursor, len(text)))
    shell = Shell(verbs, names, text, place)
    fixes = tuple(shell.fixes())
    fixed = put_all(text, fixes)
    call = {"cli": shell.whole(fixed)}
    return Suggestions(kinds.CLI, "", "", tuple(shell.candidates()), fixes, fixed, shell.explains(), call)


@dataclass(frozen=True)
class Shell:
    """Suggests the next word; `names` has the existing names by metavar."""

    verbs: Verbs
    names: Mapping[str, Sequence[str]]
    text: str
    cursor: int

    @cached_property
    def typed(self) -> Word:
        """The word at the cursor, empty where none has been begun."""
        words = read_words(self.text[: self.cursor])
        if words and (words[-1].end == self.cursor and not self.text[: self.cursor][-1:].isspace()):
            return words[-1]
        return Word("", self.cursor, self.cursor, (self.cursor,))

    def line(self) -> CommandText:
        """Read the words before the one at the cursor."""
        line = CommandText(self.verbs)
        for word in self._before():
            line.take(word)
        return line

    def _before(self) -> list[Word]:
        words = read_words(self.text[: self.cursor])
        first = next((place for place, word in enumerate(words) if word.text == PROGRAM), None)
        return [word for word in words[first + 1 :] if word.end < self.cursor] if first is not None else []

    @property
    def is_begun(self) -> bool:
        """Whether the program's own name has been typed."""
        words = read_words(self.text[: self.cursor])
        return any(word.text == PROGRAM and word.end < self.cursor for word in words)

    def candidates(self) -> list[Suggestion]:
        if not self.is_begun:
            return [self._word(PROGRAM, about="plan, train, operate and serve language models")]
        line, typed = self.line(), self.typed.text
        if line.waiting is not None:
            return self._values(line.waiting, typed)
        if typed.startswith("-") and not line.ended:
            name, equals, value = typed.partition("=")
            option = next((each for each in line.verbs.options if name in each.names), None)
            if equals:
                return self._values(option, value, before=f"{name}=") if option is not None else []
            return self._options(line, typed)
        found = self._placed(line, typed)
        return found if typed else [*found, *([] if self._lacks(line) else self._options(line, ""))]

    def explains(self) -> Explanation | None:
        """Explain the option or the argument at the cursor, or else the verb."""
        line, typed = self.line(), self.typed.text.partition("=")[0]
        option = line.waiting or next((each for each in line.verbs.options if typed in each.names), None)
        verb = line.verbs.words.get(typed)
        if option is None and verb is None and not typed.startswith("-") and not line.verbs.words:
            option = line.argument
        if option is not None:
            values = option.choices or tuple(self._known(option))
            return Explanation(
                option.name, option.type or option.metavar, default=option.default, about=option.about,
                required=option.required, values=values,
            )  # fmt: skip
        name = " ".join([PROGRAM, *line.words, *([typed] if verb is not None else [])])
        about = verb.about if verb is not None else line.verbs.about
        return Explanation(name, about=about, values=tuple((verb or line.verbs).words))

    def fixes(self) -> list[Fix]:
        """Correct misspelt verbs, options and values, except the word at the cursor."""
        typing = self.typed.text and self.cursor == len(self.text)
        whole = Shell(
            self.verbs, self.names, self.text if typing else f"{self.text} ", len(self.text) + (not typing)
        )
        return whole.line().slips

    def whole(self, fixed: str) -> str:
        """Return the command with the arguments that it lacks."""
        done = Shell(self.verbs, self.names, f"{fixed} ", len(fixed) + 1)
        line = done.line()
        added = []
        if line.waiting is not None:
            added.append(self._sample(line.waiting))
        for option in line.verbs.options:
            if option.required and not line.used & set(option.names):
                added += [option.name, self._sample(option)]
        if not line.verbs.words or line.given:
            added += [self._sample(each) for each in line.verbs.arguments[len(line.given) :] if each.required]
        return " ".join([fixed.rstrip(), *added])

    def _sample(self, option: CommandOption) -> str:
        known = [*option.choices, *self._known(option)]
        return quoted(known[0] if known else option.default or option.metavar)

    def _lacks(self, line: CommandText) -> bool:
        if line.verbs.words and not line.given and not line.verbs.arguments:
            return True
        argument = line.argument
        return argument is not None and argument.required and len(line.given) < len(line.verbs.arguments)

    def _placed(self, line: CommandText, typed: str) -> list[Suggestion]:
        """Offer verbs, and values of the argument that comes next."""
        words = line.verbs.words if not line.given else {}
        found = [self._word(word, about=words[word].about) for word in ranked(typed, list(words))]
        argument = line.argument
        if argument is None or (words and typed in words):
            return found
        values = self._values(argument, typed, skip=line.given)
        sure = [each for each in values if each.text.startswith(typed)]
        return [*found, *values] if not sure or not typed else [*_begin(found, typed), *sure]

    def _options(self, line: CommandText, typed: str) -> list[Suggestion]:
        free = [each for each in line.verbs.options if each.repeats or not line.used & set(each.names)]
        free.sort(key=lambda each: (not each.required, each.name in ("--help", "--home", "--json")))
        known = {each.name: each for each in free}
        if len(typed) == 2 and typed[1:2] != "-":
            known |= {name: each for each in free for name in each.names}
        return [
            Suggestion(
                name, f"{name} ", self._span(), known[name].type or known[name].metavar or "flag",
                default=known[name].default, about=known[name].about,
            )
            for name in ranked(typed, list(known))
        ]  # fmt: skip

    def _values(
        self, option: CommandOption, typed: str, *, before: str = "", skip: Sequence[str] = ()
    ) -> list[Suggestion]:
        known = [*option.choices, *(each for each in self._known(option) if each not in skip)]
        if not known and option.default and not typed and option.type in ("integer", "number"):
            known = [option.default]
        return [
            Suggestion(
                name, before + quoted(name) + ("" if name.endswith("/") else " "), self._span(),
                option.type or option.metavar, default=option.default, about=option.about,
            )
            for name in ranked(typed, known)
        ]  # fmt: skip

    def _known(self, option: CommandOption) -> list[str]:
        """Return the names that there are now of what an option takes."""
        if "=" in option.metavar:
            return []
        parts = re.findall(r"[\w.]+", option.metavar)
        return [name for part in parts for name in self.names.get(part, ())]

    def _word(self, text: str, about: str) -> Suggestion:
        return Suggestion(text, f"{text} ", self._span(), about=about)

    def _span(self) -> tuple[int, int]:
        end = re.compile(r"\S*").match(self.text, self.cursor)
        return self.typed.start, end.end() if end and self.typed.text else self.cursor


def _begin(candidates: Sequence[Suggestion], typed: str) -> list[Suggestion]:
    return [each for each in candidates if each.text.startswith(typed)]
