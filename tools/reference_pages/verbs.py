"""docs/reference/cli.md: every verb with its arguments, from the parsers that read them."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator, Sequence

from reference_pages.markdown import anchor, block, code, head, table, whole
from windlass.cli.main import EPILOG, VERBS, Parser, module_of

_DEFAULT = re.compile(r"\s*\(default: ([^()]*)\)|; default: (.*)$")
USUAL = ("positional arguments", "options")
"""Groups that argparse makes by itself."""


def page() -> str:
    """Return the page."""
    lines = head(
        "The command line",
        "Every verb and option of `windlass`, as `windlass VERB --help` tells them. Whatever prints for"
        " people prints JSON with `--json`. Exit codes: 0 done, 2 asked wrongly, 1 our fault, 130"
        " interrupted.",
    )
    lines += table(("verb", "what it does"), (_entry(verb, purpose) for verb, purpose in VERBS.items()))
    lines += block(EPILOG)
    for name, parser in parsers():
        lines += _section(name, parser)
    return whole(lines)


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every parser under its full name, verbs before what stands below them."""
    for verb, purpose in VERBS.items():
        module = importlib.import_module(module_of(verb))
        yield from _walk(_configured(f"windlass {verb}", purpose, module.__name__))
        for word, meaning in getattr(module, "WORDS", {}).items():
            name = f"{module.__name__}_{word.replace('-', '_')}"
            yield from _walk(_configured(f"windlass {verb} {word}", meaning, name))


def _entry(verb: str, purpose: str) -> tuple[str, str]:
    name = f"windlass {verb}"
    return f"[{code(name)}](#{anchor(name)})", purpose


def _configured(name: str, purpose: str, module: str) -> argparse.ArgumentParser:
    parser = Parser(prog=name, description=_sentence(purpose), add_help=False)
    importlib.import_module(module).configure(parser)
    return parser


def _walk(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                below = action.choices[choice.dest]
                below.prog = f"{parser.prog} {choice.dest}"
                below.description = below.description or _sentence(choice.help or "")
                yield from _walk(below)


def _section(name: str, parser: argparse.ArgumentParser) -> list[str]:
    depth = "##" if name.count(" ") == 1 else "###"
    lines = [f"{depth} {name}", "", _line(parser.description), "", *block(_usage(name, parser))]
    usual = [group for group in parser._action_groups if group.title in USUAL]
    lines += _arguments([action for group in usual for action in group._group_actions])
    for group in parser._action_groups:
        told = _arguments(group._group_actions) if group not in usual else []
        if told:
            lines += [f"{_sentence(group.title or '')} {_line(group.description)}".strip(), "", *told]
    return lines + (block(parser.epilog) if parser.epilog else [])


def _arguments(actions: Sequence[argparse.Action]) -> list[str]:
    rows = ((_name(each), _meaning(each), _default(each)) for each in actions if _is_told(each))
    return table(("argument", "meaning", "default"), rows)


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    words = [name]
    if any(action.option_strings and _is_told(action) for action in parser._actions):
        words.append("[OPTION ...]")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words.append(f"{{{','.join(action.choices)}}} ...")
        elif not action.option_strings and _is_told(action):
            words.append(_placed(action))
    return " ".join(words)


def _is_told(action: argparse.Action) -> bool:
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
        return False
    return not isinstance(action, argparse._HelpAction)


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return code(_placed(action))
    value = f" {_value(action)}" if action.nargs != 0 else ""
    needed = " (needed)" if action.required else ""
    return f"{', '.join(code(f'{option}{value}') for option in action.option_strings)}{needed}"


def _placed(action: argparse.Action) -> str:
    """Write an argument that has no name, as a usage line does."""
    shapes = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
    return shapes.get(str(action.nargs), "{0}").format(_value(action))


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return action.dest.upper() if action.option_strings else action.dest


def _meaning(action: argparse.Action) -> str:
    """Return the help without its default, which has a column of its own."""
    return _DEFAULT.sub("", _help(action)).strip()


def _default(action: argparse.Action) -> str:
    stated = _DEFAULT.search(_help(action))
    if stated is not None:
        return stated[1] or stated[2]
    is_plain = action.default not in (None, argparse.SUPPRESS, []) and action.nargs != 0
    return code(str(action.default)) if is_plain else ""


def _help(action: argparse.Action) -> str:
    words = _line(action.help)
    return words % {"default": action.default} if "%(" in words else words.replace("%%", "%")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
