"""The process entry point of the package: `python -m windlass.parallel cut --shape JSON --layout JSON`.

Input: a shape and a layout, optionally speeds and memories of the devices along the pipeline. Output: one
line of JSON on standard output, {"done": ...} or {"error": ...}. Nothing here loads torch, so it is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from windlass.parallel.memory import held_weights, state_bytes
from windlass.parallel.partition import cut_model, loads_of
from windlass.parallel.schedule import bubble
from windlass.spec.layout import Layout, Partition
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.shape import Network

SHAPE: TypeAdapter[Network] = TypeAdapter(Network)
RULES = ("fixed", "balanced")


def main(argv: list[str]) -> None:
    args = _parser().parse_args(argv)
    shape, layout = SHAPE.validate_json(args.shape), Layout.model_validate_json(args.layout)
    emit({"done": describe(shape, layout, args.micro_batches, args.speeds, args.memories)})


def describe(
    shape: Network,
    layout: Layout,
    micro_batches: int,
    speeds: Sequence[float] | None = None,
    memories: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the partition and what follows: loads, weights and memory by position, and the bubble."""
    cut = cut_model(shape, layout, speeds=speeds, memories=memories)
    return {
        "cut": cut.model_dump(),
        "loads": loads_of(cut, layout, speeds),
        "weights": held_weights(cut, shape, layout),
        "state_bytes": state_bytes(cut, shape, layout),
        "unevenness": {
            "this": unevenness(cut, layout, speeds),
            **{rule: unevenness(_by(rule, shape, layout, speeds), layout, speeds) for rule in RULES},
        },
        "micro_batches": micro_batches,
        "bubble": bubble(layout.schedule, layout.pp, micro_batches, layout.virtual),
    }


def unevenness(cut: Partition, layout: Layout, speeds: Sequence[float] | None) -> float:
    """Return the time of the slowest process over what it would be if work could be divided at will."""
    whole_speed = sum(speeds) if speeds is not None else float(layout.pp)
    return max(loads_of(cut, layout, speeds)) * whole_speed


def _by(rule: str, shape: Network, layout: Layout, speeds: Sequence[float] | None) -> Partition:
    return cut_model(shape, layout.model_copy(update={"cut": rule, "stages": None}), speeds=speeds)


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.parallel")
    verb = parser.add_subparsers(dest="verb", required=True).add_parser("cut", help="cut a model")
    verb.add_argument("--shape", required=True)
    verb.add_argument("--layout", required=True)
    verb.add_argument("--micro-batches", type=int, default=1)
    verb.add_argument("--speeds", type=_numbers)
    verb.add_argument("--memories", type=_bytes)
    return parser


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _bytes(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    run_entrypoint(main)
