"""`windlass plan serving`: find the replicas and layout that serve a given load within latency targets."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.cli.terminal import print_json, print_table
from windlass.lab.planner.serving_validation import Judgement, judge
from windlass.plan.cost.catalogue import device_named
from windlass.plan.cost.models import model_of
from windlass.plan.serving.fitted_constants import TABLE, published, reach_of, spread, text_of
from windlass.plan.serving.search import ServingOption, TrafficSpec, cheapest
from windlass.plan.serving.times import FORMATS
from windlass.spec.errors import AskedWrongly, NotFound
from windlass.spec.units import format_bytes, format_count, parse_seconds

ROWS = Path("../shared/planner/serving_rows.csv")
SHOWN = 5
EPILOG = """\
The model is a published one by name (Llama-3.1-70B, DeepSeek-V3, Qwen3-32B, gpt-oss-120b ...) or its
sizes. Times are those of a typical request at the given batch size; docs/planner.md has the formulas and
their errors against measurements.

examples:
  windlass plan serving --model Llama-3.1-70B --device H100-SXM5 --input 1024 --output 256 --rate 20 \\
      --ttft 500ms --per-token 40ms
  windlass plan serving --model DeepSeek-V3 --device H200-SXM --weights float8 --engine sglang \\
      --input 8192 --output 1024 --concurrency 256
  windlass plan serving --model gpt-oss-120b --device H100-SXM5,H200-SXM,B200-SXM --weights float4 \\
      --input 1024 --output 512 --rate 50 --per-token 20ms
  windlass plan serving --model layers=24,width=2048,heads=16,kv_heads=4 --device L4 \\
      --input 512 --output 128 --rate 2
  windlass plan serving --judge --rows serving_rows.csv      cross-validate against measured times
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    target = parser.add_argument_group("what is served")
    target.add_argument(
        "--model", metavar="NAME|SIZES", help="published model, or layers=..,width=..,heads=.."
    )
    target.add_argument(
        "--device", metavar="NAME,...", help="devices to choose from, by their names in the catalogue"
    )
    target.add_argument("--weights", choices=FORMATS, default="bfloat16", help="format of the weights")
    target.add_argument(
        "--engine", default="windlass", help=f"software: {', '.join(published())}, or another"
    )
    target.add_argument("--input", type=_whole, metavar="TOKENS", help="prompt length")
    target.add_argument("--output", type=_whole, metavar="TOKENS", help="output length")
    load = target.add_mutually_exclusive_group()
    load.add_argument("--rate", type=_positive, metavar="R", help="requests per second (open loop)")
    load.add_argument("--concurrency", type=_whole, metavar="C", help="concurrent requests (closed loop)")
    target.add_argument(
        "--ttft", type=_seconds, default=math.inf, metavar="TIME", help="target for the first token"
    )
    target.add_argument(
        "--per-token", type=_seconds, default=math.inf, metavar="TIME", help="target for each further token"
    )
    target.add_argument("--max-devices", type=_whole, default=64, metavar="N", help="devices per replica")
    proof = parser.add_argument_group("validation")
    proof.add_argument(
        "--judge",
        action="store_true",
        help="cross-validate against measured rows, leaving out systems and models",
    )
    proof.add_argument("--rows", type=Path, default=ROWS, metavar="FILE", help=f"CSV of rows, else {ROWS}")
    proof.add_argument("--write", action="store_true", help="with --judge: write the table of constants")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.judge:
        return _judge(args)
    missing = [name for name in ("model", "device", "input", "output") if getattr(args, name) is None]
    if missing:
        raise AskedWrongly(
            f"plan serving: --{missing[0]} is missing", hint="windlass plan serving --help has examples"
        )
    if args.rate is None and args.concurrency is None:
        raise AskedWrongly(
            "plan serving: --rate or --concurrency is missing", hint="give --rate 20 or --concurrency 64"
        )
    traffic = TrafficSpec(args.input, args.output, args.rate, args.concurrency, args.ttft, args.per_token)
    model, devices = model_of(args.model), [device_named(name) for name in args.device.split(",")]
    options = cheapest(model, devices, args.weights, traffic, reach_of(args.engine), args.max_devices)
    if args.json:
        print_json({"best": _plain(options[0]), "options": [_plain(one) for one in options]})
    else:
        _print(options, args.engine)
    return 0


def _print(options: list[ServingOption], engine: str) -> None:
    head = (
        "replicas",
        "layout",
        "devices",
        "of",
        "batch",
        "first token",
        "each token",
        "tokens/s",
        "$/h from",
    )
    print_table([_row(one) for one in options[:SHOWN]], head)
    best = options[0]
    weights = format_bytes(best.replica.weight_bytes_each)
    print(f"- {best.replicas} x {_layout(best)} is the cheapest; each device holds {weights} of weights")
    first, token = spread().first, spread().token
    print(
        f"- four of five measured times were {first[0]:.2g} to {first[1]:.2g} times (first token) and"
        f" {token[0]:.2g} to {token[1]:.2g} times (each token) what was predicted"
    )
    if len(options) > SHOWN:
        print(f"- {len(options) - SHOWN} more layouts meet the targets; --json has them")
    if engine not in published():
        print(f"- '{engine}' was not measured: the median of {', '.join(published())} is used")


def _row(one: ServingOption) -> tuple[object, ...]:
    return (
        one.replicas,
        _layout(one),
        one.devices,
        one.replica.device.name,
        one.batch,
        f"{1e3 * one.latency.first_s:.0f} ms",
        f"{1e3 * one.latency.token_s:.1f} ms",
        format_count(round(one.tokens_s)),
        "unknown" if one.dollars_h is None else f"{one.dollars_h:.2f}",
    )


def _layout(one: ServingOption) -> str:
    axes = {"tp": one.replica.tp, "pp": one.replica.pp, "dp": one.replica.dp}
    return ",".join(f"{name}={size}" for name, size in axes.items() if size > 1) or "one device"


def _plain(one: ServingOption) -> dict[str, Any]:
    return {
        "replicas": one.replicas,
        "device": one.replica.device.name,
        "tp": one.replica.tp,
        "pp": one.replica.pp,
        "dp": one.replica.dp,
        "devices": one.devices,
        "batch": one.batch,
        "ttft_s": float(one.latency.first_s),
        "ttft_range_s": [share * float(one.latency.first_s) for share in spread().first],
        "per_token_s": float(one.latency.token_s),
        "per_token_range_s": [share * float(one.latency.token_s) for share in spread().token],
        "tokens_s": one.tokens_s,
        "dollars_h": one.dollars_h,
        "weight_bytes_each": one.replica.weight_bytes_each,
        "parts": {name: float(seconds) for name, seconds in one.latency.parts.items()},
    }


def _judge(args: argparse.Namespace) -> int:
    if not args.rows.exists():
        raise NotFound(
            f"{args.rows}: no such file", hint="give --rows FILE with the columns of serving_rows.csv"
        )
    judged = judge(args.rows)
    if args.write:
        TABLE.write_text(text_of(judged.known, judged.spread))
    if args.json:
        print_json(judged.plain())
    else:
        _print_judgement(judged)
    return 0


def _print_judgement(judged: Judgement) -> None:
    head = ("left out", "rows", "first token", "median", "each token", "median")
    for what, groups in judged.errors.items():
        print_table([(f"{what} {name}", *_errors(found)) for name, found in groups.items()], head)
        print()
    for what, name in (("first", "the first token"), ("token", "a token")):
        low, high = getattr(judged.spread, what)
        held = f"{judged.coverage[what]:.0%} of unseen rows"
        print(f"- {held} take {low:.2g} to {high:.2g} times as long as predicted for {name}")
    for reason, count in judged.skipped.items():
        print(f"- {count} rows skipped: {reason}")
    print("- worst: " + "; ".join(judged.worst))


def _errors(found: dict[str, float]) -> tuple[object, ...]:
    shares = (f"{found[name]:.0%}" for name in ("ttft_mape", "ttft_median", "tpot_mape", "tpot_median"))
    return (int(found["rows"]), *shares)


def _checked(read: Callable[[str], float], text: str) -> float:
    try:
        value = read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' must be more than zero")
    return value


def _positive(text: str) -> float:
    return _checked(float, text)


def _seconds(text: str) -> float:
    return _checked(parse_seconds, text)


def _whole(text: str) -> int:
    return round(_checked(int, text))
