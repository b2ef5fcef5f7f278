"""`windlass eval`: measure loss, perplexity and bits per byte of a model on held-out text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.registry.evaluate import corpus_to_measure_on, measure, score
from windlass.registry.versions import resolve_model
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import AskedWrongly
from windlass.spec.protocol.progress import Progress

EPILOG = """\
Without --corpus, the validation part of the corpus that the model was trained on is used.

examples:
  windlass eval shakespeare-char
  windlass eval shakespeare-char@2 --json
  windlass eval path/to/model --corpus poems.txt
  windlass eval shakespeare-char --text "To be, or not to be"     how likely is each token of this?
  windlass eval shakespeare-char --text - < letter.txt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION, NAME@ALIAS or a model directory")
    parser.add_argument(
        "--corpus", help="a built corpus, or text to build one from with the model's own tokenizer"
    )
    parser.add_argument("--text", help="score this text instead, token by token; - reads standard input")
    parser.add_argument("--sequences", type=int, help="measure on this many sequences only")
    parser.add_argument("--context", type=int, help="length of a sequence (default: the model's)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _score(args: argparse.Namespace, name: str, model: Path) -> int:
    given = [option for option in ("corpus", "sequences", "context") if getattr(args, option) is not None]
    if given:
        raise AskedWrongly(f"--{given[0]} cannot be used with --text", hint="the whole text is scored")
    text = sys.stdin.read() if args.text == "-" else args.text
    found = score(model, text, home_of(args), threads=args.threads)
    if args.json:
        print_json({**found, "model": name})
        return 0
    rows = [(repr(token["text"])[1:-1], f"{token['logprob']:.3f}") for token in found["tokens"]]
    print_table(rows, ("token", "log-probability"))
    print(
        f"{found['logprob']:.3f} nats, perplexity {found['perplexity']:.2f}, "
        f"{found['bits_per_byte']:.3f} bits per byte"
    )
    return 0


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    line = ProgressLine(quiet=args.json)
    name, model, version = resolve_model(home, args.model)
    if args.text is not None:
        return _score(args, name, model)
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
