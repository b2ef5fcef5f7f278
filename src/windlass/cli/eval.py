"""`windlass eval`: measure loss, perplexity and bits per byte of a model on held-out text."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import ProgressLine, print_json
from windlass.operate.measure import corpus_to_measure_on, measure
from windlass.operate.registry import resolve_model
from windlass.spec.progress import Progress

EPILOG = """\
Without --corpus, the validation part of the corpus that the model was trained on is used.

examples:
  windlass eval shakespeare-char
  windlass eval shakespeare-char@2 --json
  windlass eval path/to/model --corpus poems.txt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION, NAME@ALIAS or a model directory")
    parser.add_argument(
        "--corpus", help="a built corpus, or text to build one from with the model's own tokenizer"
    )
    parser.add_argument("--sequences", type=int, help="measure on this many sequences only")
    parser.add_argument("--context", type=int, help="length of a sequence (default: the model's)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    line = ProgressLine(quiet=args.json)
    name, model, version = resolve_model(home, args.model)
    corpus: Path = corpus_to_measure_on(args.corpus, model, version, home, line)

    def tell(event: dict[str, object]) -> None:
        if event.get("event") == "progress":
            line(Progress("evaluate", float(str(event["done"])), float(str(event["total"])), "tokens"))

    found = measure(
        model, corpus, home, tell, sequences=args.sequences, context=args.context, threads=args.threads
    )
    line.close()
    if args.json:
        print_json({**found, "model": name})
    else:
        print(f"{name} on {found['tokens']} tokens of {corpus.name}")
        print(f"loss           {found['loss']:.4f} nats per token")
        print(f"perplexity     {found['perplexity']:.3f}")
        print(f"bits per byte  {found['bits_per_byte']:.4f}")
    return 0
