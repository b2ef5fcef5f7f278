"""The output of `windlass complete`: candidates, diagnostics, an explanation and the complete call."""

from __future__ import annotations

import argparse
import os
from typing import Any

from windlass.cli.complete.server_schema import known
from windlass.cli.complete.shells import names_for, verb_in
from windlass.cli.complete.verbs import verbs_for
from windlass.cli.terminal import print_json, print_table
from windlass.completion import kinds
from windlass.completion.complete import complete
from windlass.completion.from_cli import complete_cli
from windlass.completion.suggestions import Suggestions

SHOWN = 10
"""How many candidates are printed; `--json` has all."""


def print_suggestions(args: argparse.Namespace) -> int:
    offer, source = _offer(args)
    if args.json:
        print_json({**offer.as_json(), "source": source})
    elif args.write is not None:
        print(offer.call.get(args.write) or offer.call.get("cli", ""))
    else:
        _show(offer, source)
    return 0


def _offer(args: argparse.Namespace) -> tuple[Suggestions, str]:
    """Return the suggestions, and the source of the schema."""
    kind = kinds.kind_of(args.text) if args.kind == "auto" else args.kind
    if kind == kinds.CLI:
        names = names_for(args.text, args.cursor, home=args.home)
        return complete_cli(
            args.text, args.cursor, verbs=verbs_for(verb_in(args.text)), names=names
        ), "this command line"
    document, models, source = known(args.server, os.environ.get(args.key_env, ""), args.home)
    offer = complete(
        args.text,
        args.cursor,
        document=document,
        models=models,
        kind=kind,
        path=args.path,
        server=args.server,
    )
    return offer, source


def _show(offer: Suggestions, source: str) -> None:
    """Print the suggestions as text."""
    _show_candidates(offer)
    for about in dict.fromkeys(fix.about for fix in offer.fixes):
        print(f"fix: {about}")
    if offer.explains is not None:
        _show_explanation(offer)
    if offer.fixes:
        print(f"\ncorrected call:\n{_indented(offer.fixed)}")
    for language in ("cli", "curl", "python"):
        if offer.call.get(language) and language in ("cli", _language(offer)):
            print(f"\ncomplete call:\n{_indented(offer.call[language])}")
    print(f"\n(names and parameters from {source})")


def _language(offer: Suggestions) -> str:
    return "python" if offer.kind == kinds.PYTHON else "curl"


def _show_candidates(offer: Suggestions) -> None:
    rows: list[tuple[Any, ...]] = [
        (each.text, each.type, each.range, each.default, _short(each.about))
        for each in offer.candidates[:SHOWN]
    ]
    if not rows:
        print("no suggestions here")
        return
    used = [place for place in range(5) if place == 0 or any(row[place] for row in rows)]
    head = ("candidate", "type", "range", "default", "about")
    print_table([[row[place] for place in used] for row in rows], [head[place] for place in used])
    left = len(offer.candidates) - SHOWN
    if left > 0:
        print(f"... and {left} more")


def _show_explanation(offer: Suggestions) -> None:
    parameter = offer.explains
    assert parameter is not None
    facts = [
        parameter.type,
        parameter.range,
        f"default {parameter.default}" if parameter.default else "",
        "required" * parameter.required,
    ]
    print(f"{parameter.name}: {', '.join(fact for fact in facts if fact)}".rstrip(": "))
    if parameter.about:
        print(f"  {parameter.about}")
    if parameter.values:
        print(f"  values: {', '.join(parameter.values[:SHOWN])}")


def _short(text: str) -> str:
    return text if len(text) <= 70 else f"{text[:67]}..."


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
