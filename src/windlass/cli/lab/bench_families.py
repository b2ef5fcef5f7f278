"""`windlass bench families`: perplexity of every model family on the same text in the same time."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.bench.families import FAMILIES, HEADS, FamilyBenchOptions, compare, table
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput
from windlass.spec.job import STDLIB

EPILOG = """\
One corpus, one tokenizer, the same held-out windows. Families trained with gradients get --seconds each;
n-grams are counted and take as long as they need. Finished families are not trained again, so an interrupted
run continues.

examples:
  windlass bench families
  windlass bench families --corpus book.txt --seconds 120 --json
  windlass bench families --families ngram-5,hmm,llama
"""


def configure(parser: argparse.ArgumentParser) -> None:
    usual = FamilyBenchOptions(())
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--corpus", action="append", metavar="URL", help="text (default: Python's library)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=usual.seconds,
        help=f"training time of each (default: {usual.seconds:g})",
    )
    parser.add_argument(
        "--vocabulary", type=int, default=usual.vocabulary, help="vocabulary size of the tokenizer"
    )
    parser.add_argument(
        "--context", type=int, default=usual.context, help="length of a held-out window, in tokens"
    )
    parser.add_argument("--families", default=",".join(FAMILIES), metavar="NAME,...", help="which")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.seconds > 0:
        raise BadInput(f"--seconds {args.seconds}: must be more than 0")
    line = ProgressLine(quiet=args.json)
    sources, names = tuple(args.corpus or [STDLIB]), tuple(args.families.split(","))
    wanted = FamilyBenchOptions(sources, args.seconds, args.vocabulary, args.context, names)
    result = compare(wanted, home_of(args), line, line.say)
    line.close()
    if args.json:
        print_json(result)
    else:
        print_table(table(result["families"]), HEADS)
    return 0
