"""One of the processes that measure a machine together, for `windlass probe`.

    python -m windlass.train.probe [--quick] [--held] --rank R --world W --rendezvous HOST:PORT --cores a,b

Input: who it is. Output: events as spec.door has them, at last everything that it measured; whoever started
it (operate/probe.py) puts the figures of all together. With --held it only tells what a model of some size
holds in memory, for which it must be fresh.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from windlass.spec.door import DoorParser, emit, run_door
from windlass.spec.member import Member, add_member, member_of, settle


def main(argv: list[str]) -> int:
    begin = time.perf_counter()
    parser = DoorParser(prog="python -m windlass.train.probe")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--held", action="store_true")
    add_member(parser)
    args = parser.parse_args(argv)
    member = member_of(args)
    settle(member)
    import torch

    from windlass.parallel.grid import meeting

    # All that a training process imports, so that start-up and memory are those of one.
    importlib.import_module("windlass.train.loop")
    start_s = time.perf_counter() - begin
    torch.set_num_threads(len(member.cores))
    torch.set_flush_denormal(True)
    with meeting(member, torch.device("cpu")):
        emit({"done": {"start_s": start_s, **_measured(member, quick=args.quick, only_held=args.held)}})
    return 0


def _measured(member: Member, *, quick: bool, only_held: bool) -> dict[str, Any]:
    from windlass.train import probe_blocks as wholes
    from windlass.train import probe_parts as parts

    if only_held:
        return {"held": wholes.held(wholes.HELD, wholes.HELD_LAYERS).model_dump()}
    effort = parts.QUICK if quick else parts.FULL
    found: dict[str, Any] = {"held": wholes.held(wholes.TINY, 1).model_dump()}
    stages: dict[str, Callable[[parts.Effort], Iterable[Any]]] = {
        "blocks": wholes.blocks,
        "products": parts.products,
        "attentions": parts.attentions,
        "streams": parts.streams,
        "updates": parts.updates,
        "exchanges": parts.exchanges,
    }
    for stage, measure in stages.items():
        found[stage] = [one.model_dump() for one in measure(effort)]
        emit({"event": "measured", "stage": stage})
    tiny = wholes.Block.model_validate(found["blocks"][0])
    found["handing_s"] = wholes.handing_s(effort, tiny)
    return {"processes": member.world, "threads": len(member.cores), **found}


if __name__ == "__main__":
    run_door(main)
