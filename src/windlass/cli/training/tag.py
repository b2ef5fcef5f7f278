"""`windlass tag`: tag each token of a text with its hidden state."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.registry.tag import tag
from windlass.registry.versions import resolve_model
from windlass.spec.errors import AskedWrongly

EPILOG = """\
MODEL is a hidden Markov model ([model] family = "hmm"). The states are the most likely sequence for the whole
text (Viterbi). --states shows the most likely tokens of each state; without --text, of all states.

examples:
  windlass tag verses --text "To be, or not to be"
  windlass tag verses --text - --json < poem.txt
  windlass tag verses --states --top 8
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION, NAME@ALIAS or a model directory")
    parser.add_argument("--text", help="text to tag; - reads it from standard input")
    parser.add_argument("--states", action="store_true", help="show the most likely tokens of each state")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="tokens shown of each state (default: 10)"
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.text is None and not args.states:
        raise AskedWrongly("nothing to tag", hint='give --text "some text", or --states to see all states')
    if args.top < 1:
        raise AskedWrongly(f"--top {args.top}: must be at least 1")
    home = home_of(args)
    name, model, _ = resolve_model(home, args.model)
    text = sys.stdin.read() if args.text == "-" else args.text
    found = tag(model, text, home, listed=args.top if args.states else 0)
    if args.json:
        print_json({"model": name, **found})
        return 0
    if "tokens" in found:
        print_table([(repr(each["text"]), each["state"]) for each in found["tokens"]], ("token", "state"))
    if "states" in found:
        print_table([_row(each) for each in found["states"]], ("state", "share", "likeliest tokens"))
    return 0


def _row(state: dict[str, Any]) -> tuple[int, str, str]:
    tokens = " ".join(repr(token["text"]) for token in state["tokens"])
    return state["state"], f"{state['share']:.2%}", tokens
