"""`windlass models near`: list the tokens with the nearest embedding vectors."""

from __future__ import annotations

import argparse

from windlass.cli.home import home_of
from windlass.cli.terminal import print_json, print_table
from windlass.registry.nearest import find_near
from windlass.registry.versions import resolve_model
from windlass.spec.errors import AskedWrongly

EPILOG = """\
TOKEN is a word as written in a text, or a piece of one. A word of several tokens has no single vector; the
error lists its tokens. Tokens are compared by the cosine similarity of their embedding vectors.

examples:
  windlass models near base king
  windlass models near ./model "def" --count 20 --json
  windlass models near base 417 --id
"""
MAX_COUNT = 1000


def configure_near(verb: argparse.ArgumentParser) -> None:
    verb.epilog = EPILOG
    verb.add_argument("token", metavar="TOKEN", help="a word or a piece of one")
    verb.add_argument("--count", type=int, default=10, metavar="N", help="how many to list (default: 10)")
    verb.add_argument("--id", action="store_true", dest="by_id", help="TOKEN is the number of a token")


def run_near(args: argparse.Namespace) -> int:
    if not 1 <= args.count <= MAX_COUNT:
        raise AskedWrongly(f"--count {args.count}: must be from 1 to {MAX_COUNT}")
    name, path, _ = resolve_model(home_of(args), args.model)
    found = find_near(path, args.token, count=args.count, by_id=args.by_id, logs=home_of(args) / "logs")
    if args.json:
        print_json({"model": name, **found})
        return 0
    rows = [(repr(one["text"]), str(one["id"]), f"{one['cosine']:.3f}") for one in found["near"]]
    print_table(rows, ("token", "id", "cosine"))
    return 0
