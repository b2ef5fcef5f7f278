"""`windlass bench`: benchmark training and serving against other software.

With --json every benchmark prints one object with `figures`, a map from names to numbers.
"""

from __future__ import annotations

import argparse
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.lab import (
    bench_control,
    bench_families,
    bench_gateway,
    bench_overload,
    bench_serve,
    bench_served,
    bench_soak,
)
from windlass.cli.terminal import print_json, print_table
from windlass.cluster.launch.local_process import LocalProcess
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput
from windlass.spec.processes import TOKENISE_BENCH, TRAIN_BENCH, WORD2VEC_BENCH
from windlass.spec.protocol.progress import Progress

EPILOG = """\
examples:
  windlass bench corpus
  windlass bench train --json
  windlass bench train --layouts
  windlass bench train --sync --steps 1000
  windlass bench elastic
  windlass bench hmm
  windlass bench ngram --json
  windlass bench word2vec --text notes.txt
  windlass bench server --steps 600
  windlass bench serve --models small
  windlass bench soak --minutes 20
  windlass bench overload
  windlass bench gateway
  windlass bench families
  windlass bench control

Install the software to compare with: pip install 'windlass[bench]'. docs/benchmarks.md has the figures.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    whats = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for what, action, purpose in (
        ("corpus", run_corpus, "tokenising, compared with the tokenizers library alone"),
        (
            "train",
            run_train,
            "training, compared with Hugging Face's Trainer and this machine's peak FLOP/s",
        ),
        ("elastic", run_elastic, "overhead of fault tolerance without failures"),
        ("hmm", run_hmm, "Baum-Welch iterations, compared with hmmlearn"),
        ("ngram", run_ngram, "n-gram models, compared with KenLM: perplexity and speed"),
        ("word2vec", run_word2vec, "word2vec, compared with gensim: speed and nearest words"),
    ):
        inner = whats.add_parser(what, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
        inner.add_argument(
            "--repeats", type=int, default=5, help="rounds; the median is reported (default: 5)"
        )
        inner.add_argument("--json", action="store_true", help="print JSON")
        add_home(inner)
        inner.set_defaults(run=action)
        if what == "train":
            _add_train(inner)
        elif what == "word2vec":
            _add_word2vec(inner)
    server = "training on parameter servers, all modes at equal samples"
    bench_served.configure(whats.add_parser("server", help=server))
    serve = "serving, compared with llama.cpp, CTranslate2, OpenVINO and transformers"
    bench_serve.configure(whats.add_parser("serve", help=serve))
    soak = "an engine under mixed traffic: memory growth, leaks and wrong answers"
    bench_soak.configure(whats.add_parser("soak", help=soak))
    overload = "the service under ten times the load that it can serve"
    bench_overload.configure(whats.add_parser("overload", help=overload))
    families = "perplexity of all model families on the same text, in the same time"
    bench_families.configure(whats.add_parser("families", help=families))
    gateway = "the gateway alone, compared with a bare application and LiteLLM's proxy"
    bench_gateway.configure(whats.add_parser("gateway", help=gateway))
    control = "a control plane: queue and reconcile a thousand jobs"
    bench_control.configure(whats.add_parser("control", help=control))


def _add_train(parser: argparse.ArgumentParser) -> None:
    whats = parser.add_mutually_exclusive_group()
    whats.add_argument(
        "--layouts",
        action="store_true",
        help="two processes in several layouts, compared with one process of two threads",
    )
    whats.add_argument("--sync", action="store_true", help="every sync policy: loss, bytes and speed")
    whats.add_argument(
        "--asynchronous",
        action="store_true",
        help="the asynchronous pipeline, compared with 1F1B: time to a loss",
    )
    parser.add_argument("--steps", type=int, help="steps of each run (--sync)")


def _add_word2vec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="FILE",
        help="text, one sentence per line; may be repeated (default: Python's standard library)",
    )
    parser.add_argument("--words", type=int, default=1_000_000, help="max words to read (default: 1000000)")


def run_corpus(args: argparse.Namespace) -> int:
    return _bench(args, TOKENISE_BENCH, [])


def run_train(args: argparse.Namespace) -> int:
    chosen = [what for what in ("layouts", "sync", "asynchronous") if getattr(args, what)]
    what = ["--what", *(chosen or ["peers"])]
    return _bench(args, TRAIN_BENCH, what + (["--steps", str(args.steps)] if args.steps else []))


def run_elastic(args: argparse.Namespace) -> int:
    return _bench(args, TRAIN_BENCH, ["--what", "elastic"])


def run_hmm(args: argparse.Namespace) -> int:
    return _bench(args, TRAIN_BENCH, ["--what", "hmm"])


def run_ngram(args: argparse.Namespace) -> int:
    return _bench(args, TRAIN_BENCH, ["--what", "ngram"])


def run_word2vec(args: argparse.Namespace) -> int:
    if args.words < 1:
        raise BadInput(f"--words {args.words}: must be at least 1")
    texts = [f"--text={text}" for text in args.text]
    return _bench(args, WORD2VEC_BENCH, [*texts, f"--words={args.words}"])


def _bench(args: argparse.Namespace, module: str, command: list[str]) -> int:
    if args.repeats < 1:
        raise BadInput(f"--repeats {args.repeats}: must be at least 1")
    line = ProgressLine(quiet=args.json)
    options = [*command, "--repeats", str(args.repeats)]
    result: dict[str, Any] = {}
    with LocalProcess("bench", module, options, home_of(args) / "logs" / "bench.log") as process:
        for event in process.events():
            if event.get("event") == "progress":
                line(Progress(event["stage"], event["done"], event["total"], event["unit"]))
            elif event.get("event") in ("note", "warning"):
                line.say(str(event["message"]))
            result = event.get("done", result)
        process.check()
    line.close()
    if args.json:
        print_json(result)
    else:
        print_table([(k, f"{v:.4g}") for k, v in result["figures"].items()], ("figure", "value"))
    return 0
