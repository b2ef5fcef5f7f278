"""One of the processes that measure a machine together, for `windlass probe`.

    python -m windlass.train.probe [--quick] [--held] --rank R --world W --rendezvous HOST:PORT --cores a,b

Input: rank and world. Output: events as in spec.protocol.entrypoint, and at the end all measurements; the
parent (runs/planning/probe.py) combines the figures of all processes. With --held it only reports the memory
that a model of some size takes, which needs a fresh process.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from windlass.plan.local.profile import BlockTime, Division
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.rank import RankInfo, add_member, apply_affinity, member_of


def main(argv: list[str]) -> int:
    begin = time.perf_counter()
    parser = EntrypointParser(prog="python -m windlass.train.probe")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--held", action="store_true")
    add_member(parser)
    args = parser.parse_args(argv)
    member = member_of(args)
    apply_affinity(member)
    import torch

    # Import what a training process imports, so that start-up time and memory are the same.
    importlib.import_module("windlass.train.loop")
    start_s = time.perf_counter() - begin
    torch.set_num_threads(len(member.cores))
    torch.set_flush_denormal(True)
    measured = _held() if args.held else _measured(member, quick=args.quick)
    emit({"done": {"start_s": start_s, **measured}})
    return 0


def _held() -> dict[str, Any]:
    from windlass.train.probe.block_times import HELD, HELD_LAYERS, held

    return {"held": held(HELD, HELD_LAYERS).model_dump()}


def _measured(member: RankInfo, *, quick: bool) -> dict[str, Any]:
    """Measure everything. Each stage has its own process group: idle groups cost time too."""
    from windlass.train.probe import block_times as wholes
    from windlass.train.probe import kernel_times as parts

    effort, meet = parts.QUICK if quick else parts.FULL, _meetings(member)
    with meet("held"):
        found: dict[str, Any] = {"held": wholes.held(wholes.TINY, 1).model_dump(), "blocks": []}
    divisions: tuple[Division, ...] = ("plain", "sharded", "tp") if member.world > 1 else ("plain",)
    for division in divisions:
        with meet(division):
            found["blocks"] += [measured.model_dump() for measured in wholes.blocks(effort, division)]
    emit({"event": "measured", "stage": "blocks"})
    for stage in ("products", "attentions", "streams", "updates", "exchanges"):
        with meet(stage):
            found[stage] = [measured.model_dump() for measured in getattr(parts, stage)(effort)]
        emit({"event": "measured", "stage": stage})
    with meet("handing"):
        found["handing_s"] = wholes.handing_s(effort, BlockTime.model_validate(found["blocks"][0]))
    return {"processes": member.world, "threads": len(member.cores), **found}


def _meetings(member: RankInfo) -> Callable[[str], AbstractContextManager[None]]:
    """Return a function that opens a named process group for a `with` block; a no-op for a single process."""
    import torch
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from windlass.parallel.device_mesh import gathered, open_store

    if member.world == 1:
        return lambda _name: nullcontext()
    store, device = open_store(member), torch.device("cpu")
    return lambda name: gathered(PrefixStore(name, store), member, device)


if __name__ == "__main__":
    run_entrypoint(main)
