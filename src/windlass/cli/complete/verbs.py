"""The command line as data, generated from the parsers themselves, so it always matches them."""

from __future__ import annotations

import argparse
import importlib
from typing import Any, get_args

from windlass.cli.main import VERBS, Parser, module_of
from windlass.cli.verb_cache import remembered
from windlass.completion.cli_text import Verbs

COMMON: dict[str, Any] = {
    "names": ["--help", "-h"], "metavar": "", "about": "show what is possible, with examples", "default": "",
    "choices": [], "type": "", "repeats": False, "required": False,
}  # fmt: skip


def verbs_for(verb: str | None) -> Verbs:
    """Return the command line with one verb described in full; the other verbs have their names only."""
    words = {name: Verbs(purpose) for name, purpose in VERBS.items()}
    if verb in VERBS:
        description = remembered(f"verb-{verb}", lambda: describe_verb(str(verb)))
        words[str(verb)] = Verbs.from_json(description)
    return Verbs("plan, train, operate and serve language models on your own machines", (), (), words)


def describe_verb(verb: str) -> dict[str, Any]:
    """Describe a verb, with the words that may follow it."""
    name = module_of(verb)
    module = importlib.import_module(name)
    description = _described(module, verb, VERBS[verb])
    for word, purpose in getattr(module, "WORDS", {}).items():
        inner = importlib.import_module(f"{name}_{word.replace('-', '_')}")
        description["words"][word] = _described(inner, f"{verb} {word}", purpose)
    return description


def _described(module: Any, name: str, purpose: str) -> dict[str, Any]:
    parser = Parser(prog=f"windlass {name}", add_help=False)
    module.configure(parser)
    return describe(parser, purpose)


def describe(parser: argparse.ArgumentParser, purpose: str) -> dict[str, Any]:
    """Describe a parser and its subparsers."""
    description: dict[str, Any] = {"about": purpose, "options": [COMMON], "arguments": [], "words": {}}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {choice.dest: choice.help or "" for choice in action._choices_actions}
            description["words"] = {
                word: describe(inner, about.get(word, "")) for word, inner in action.choices.items()
            }
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            description["options" if action.option_strings else "arguments"].append(_option(action))
    return description


def _option(action: argparse.Action) -> dict[str, Any]:
    """Describe an option or a positional argument."""
    takes = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    needed = action.required if action.option_strings else action.nargs not in ("?", "*")
    return {
        "names": list(action.option_strings),
        "metavar": metavar if takes else "",
        "about": (action.help or "").replace("%%", "%"),
        "default": _default(action),
        "choices": [str(choice) for choice in action.choices or _values(action)] if takes else [],
        "type": "integer" if action.type is int else "number" if action.type is float else "",
        "repeats": action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction),
        "required": bool(needed),
    }


def _default(action: argparse.Action) -> str:
    """Return the default, or the one that the help text names."""
    if action.default not in (None, False, argparse.SUPPRESS, [], ()):
        return str(action.default)
    before, found, rest = (action.help or "").rpartition("(default: ")
    return rest.partition(")")[0] if found and before else ""


def _values(action: argparse.Action) -> tuple[str, ...]:
    """Return the values of an option that stands for an enumerated setting of [serve]."""
    from windlass.spec.serve import Serve

    field = Serve.model_fields.get(action.dest)
    arms = get_args(field.annotation) if field is not None and action.option_strings else ()
    inner = [each for arm in arms for each in (get_args(arm) or (arm,))]
    found = tuple(each for each in inner if isinstance(each, str))
    return found if all(each in (action.help or "") for each in found) else ()
