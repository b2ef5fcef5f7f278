"""`windlass bench serve`: our engine compared with other installed engines and with the machine's limits."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.bench.contenders import PEERS_IN, default_folder, installed_peers
from windlass.lab.bench.limits import limit_figures
from windlass.lab.bench.serve import ServeBenchOptions, ServeCell, as_json, bench_serve, figures
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput
from windlass.spec.units import format_bytes

DEFAULTS = ServeBenchOptions()
EPILOG = """\
Other engines have their own environments, made by bench/peers. All get the same model (made once, from a
fixed seed), prompts and output lengths, greedy, and take turns; 'ratio' is our tokens/s, measured right
before and after, over theirs. Fifteen minutes for everything on two cores.

examples:
  windlass bench serve
  windlass bench serve --models small --precisions int8 --concurrency 1,8
  windlass bench serve --peers llama.cpp,openvino --json
  windlass bench serve --peers none --requests 32
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for option, default, what in (
        ("--models", ",".join(DEFAULTS.models), "tiny (to try it), small (15M weights), base (110M)"),
        ("--precisions", ",".join(DEFAULTS.precisions), "weight formats"),
        ("--concurrency", ",".join(map(str, DEFAULTS.concurrency)), "requests in flight"),
    ):
        parser.add_argument(option, default=default, metavar="LIST", help=f"{what} (default: {default})")
    parser.add_argument(
        "--peers", metavar="LIST", help="engines to compare with, or 'none' (default: all installed)"
    )
    parser.add_argument("--peers-in", type=Path, metavar="DIR", help=PEERS_IN)
    for option, whole, what in (
        ("--prompt", DEFAULTS.prompt, "prompt tokens"),
        ("--output", DEFAULTS.output, "output tokens"),
        ("--requests", DEFAULTS.requests, "min requests per task"),
    ):
        parser.add_argument(option, type=int, default=whole, metavar="N", help=f"{what} (default: {whole})")
    parser.add_argument(
        "--no-limits", action="store_true", help="do not measure prefix cache, prefill and bandwidth"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    options = ServeBenchOptions(
        models=_names(args.models),
        precisions=_names(args.precisions),
        concurrency=_counts(args.concurrency),
        prompt=args.prompt,
        output=args.output,
        requests=args.requests,
    )
    wanted = None if args.peers is None else [name for name in _names(args.peers) if name != "none"]
    peers = installed_peers(args.peers_in or default_folder(), wanted)
    line, home = ProgressLine(quiet=args.json), home_of(args)
    cells = bench_serve(options, peers, home, line, line.say)
    found = figures(cells)
    if not args.no_limits:
        found |= limit_figures(cells, options, home, line)
    line.close()
    if args.json:
        print_json({"figures": found, "cells": as_json(cells)})
    else:
        print_table([row for cell in cells for row in _rows(cell)], HEAD)
        if found:
            print_table([(name, f"{value:.3g}") for name, value in found.items()], ("figure", "value"))
    return 0


HEAD = ("cell", "who", "tokens/s", "ratio", "first p50", "p99", "between p50", "p99", "memory")


def _rows(cell: ServeCell) -> list[tuple[str, ...]]:
    return [
        (
            cell.name,
            row.contender,
            f"{row.pace.tokens_per_s:.1f}",
            f"{row.ratio:.2f}",
            *(
                f"{1000 * seconds:.1f} ms"
                for seconds in (
                    row.pace.first_p50_s,
                    row.pace.first_p99_s,
                    row.pace.between_p50_s,
                    row.pace.between_p99_s,
                )
            ),
            format_bytes(row.peak_bytes),
        )
        for row in cell.rows
    ]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in _names(text))
    except ValueError:
        raise BadInput(f"--concurrency {text}: not whole numbers, such as 1,8,32") from None
