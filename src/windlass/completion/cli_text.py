"""Reads a half-typed windlass command: its verbs, options and arguments, and the mistakes in them.

`Verbs` describes the command line; the caller builds it from the argparse parsers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.completion.shell_text import Word
from windlass.completion.suggestions import Fix
from windlass.spec.errors import nearest

PROGRAM = "windlass"
MAX_NAME = 100


@dataclass(frozen=True)
class CommandOption:
    """An option, or an argument without a name where `names` is empty."""

    names: tuple[str, ...] = ()
    metavar: str = ""
    """The placeholder of its value; "" if it takes none."""
    about: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()
    type: str = ""
    repeats: bool = False
    required: bool = False

    @property
    def name(self) -> str:
        return next((name for name in self.names if name.startswith("--")), (*self.names, self.metavar)[0])


@dataclass(frozen=True)
class Verbs:
    """A verb, and what can follow it."""

    about: str = ""
    options: tuple[CommandOption, ...] = ()
    arguments: tuple[CommandOption, ...] = ()
    words: Mapping[str, Verbs] = field(default_factory=dict)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Verbs:
        return cls(
            fields["about"],
            tuple(_option(each) for each in fields["options"]),
            tuple(_option(each) for each in fields["arguments"]),
            {word: cls.from_json(inner) for word, inner in fields["words"].items()},
        )


def _option(fields: Mapping[str, Any]) -> CommandOption:
    tuples = {"names": tuple(fields["names"]), "choices": tuple(fields["choices"])}
    return CommandOption(**{**fields, **tuples})


@dataclass
class CommandText:
    """The parsed part of a command."""

    verbs: Verbs
    words: list[str] = field(default_factory=list)
    """Verbs, from the first on."""
    given: list[str] = field(default_factory=list)
    """Arguments without names."""
    used: set[str] = field(default_factory=set)
    waiting: CommandOption | None = None
    """The option whose value comes next."""
    ended: bool = False
    """Whether `--` has ended the options."""
    slips: list[Fix] = field(default_factory=list)

    def take(self, word: Word) -> None:
        """Add a finished word."""
        text = word.text
        if self.waiting is not None:
            self._choice(self.waiting, word, 0)
            self.waiting = None
        elif text == "--" and not self.ended:
            self.ended = True
        elif text.startswith("-") and len(text) > 1 and not self.ended:
            self._option(word)
        elif not self.given and self.verbs.words:
            self._verb(word)
        else:
            self._placed(word)

    def _option(self, word: Word) -> None:
        name, equals, _ = word.text.partition("=")
        known = {each: option for option in self.verbs.options for each in option.names}
        option = known.get(name)
        if option is None:
            near = nearest(name[:MAX_NAME], [each for each in known if each.startswith("--")])
            if near is None:
                return
            option = known[near]
            self.slips.append(
                Fix(f"there is no {name}; {near} is meant", near, (word.start, word.start + len(name)))
            )
        self.used |= set(option.names)
        if option.metavar and not equals:
            self.waiting = option
        elif equals:
            self._choice(option, word, len(name) + 1)

    def _verb(self, word: Word) -> None:
        found = self.verbs.words.get(word.text)
        if found is None and not self.verbs.arguments:
            near = nearest(word.text[:MAX_NAME], list(self.verbs.words))
            if near is not None:
                self.slips.append(
                    Fix(f"there is no '{word.text}'; '{near}' is meant", near, (word.start, word.end))
                )
                found, word = self.verbs.words[near], Word(near, 0, 0, ())
        if found is None:
            self._placed(word)
        else:
            self.verbs = found
            self.words.append(word.text)

    def _placed(self, word: Word) -> None:
        argument = self.argument
        if argument is not None:
            self._choice(argument, word, 0)
        self.given.append(word.text)

    def _choice(self, option: CommandOption, word: Word, skip: int) -> None:
        value = word.text[skip:]
        near = nearest(value[:MAX_NAME], list(option.choices)) if option.choices else None
        if near is not None and value not in option.choices:
            about = f"{option.name} takes {', '.join(option.choices)}"
            self.slips.append(Fix(about, near, (word.start + skip, word.end)))

    @property
    def argument(self) -> CommandOption | None:
        """The argument without a name that comes next."""
        found = self.verbs.arguments
        place = len(self.given)
        if place < len(found):
            return found[place]
        return found[-1] if found and found[-1].repeats else None
