"""One process of a contender in `windlass bench train --layouts`: takes a step for every line of input.

    python -m windlass.lab.torch.bench_worker FOLDER --rank R --world W --rendezvous HOST:PORT --cores a,b

Input: a line on standard input for each step. Output: for each, a JSON line with its measurements.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.rank import RankInfo, add_member, apply_affinity, member_of

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.lab.torch.bench_worker")
    parser.add_argument("folder", type=Path)
    add_member(parser)
    args = parser.parse_args(argv)
    member = member_of(args)
    apply_affinity(member)
    return _compete(args.folder, member)


def _compete(folder: Path, member: RankInfo) -> int:
    from windlass.parallel.device import device_of
    from windlass.parallel.device_mesh import init_process_group
    from windlass.train.event_log import EventLog
    from windlass.train.loop import load_run
    from windlass.train.trainer import Trainer

    run = load_run(folder)
    record = EventLog(folder, quiet=True, rank=member.rank)
    with init_process_group(member, device_of(run.job.machine)):
        trainer = Trainer(run, folder, record, member)
        emit({"ready": True})
        for _line in sys.stdin:
            emit(_stepped(trainer))
    record.close()
    return 0


def _stepped(trainer: Trainer) -> dict[str, Any]:
    """Take a step; return its time, the memory between backward pass and update, and the idle time."""
    from windlass.parallel.pipeline import Pipeline

    held = trainer.strategy.params
    memory: dict[str, int] = {}
    update = trainer.optimizer.step

    def measured(*args: Any, **kwargs: Any) -> Any:
        memory["gradients"] = sum(h.tensor.grad.nbytes for h in held.holdings if h.tensor.grad is not None)
        return update(*args, **kwargs)

    trainer.optimizer.step = measured  # type: ignore[method-assign]
    begin = time.perf_counter()
    trainer.train_step()
    seconds = time.perf_counter() - begin
    trainer.optimizer.step = update  # type: ignore[method-assign]
    memory["weights"] = sum(h.tensor.nbytes for h in held.holdings)
    memory["optimizer"] = sum(
        value.nbytes for state in trainer.optimizer.state.values() for value in state.values()
    )
    report: dict[str, Any] = {"seconds": seconds, "memory_bytes": sum(memory.values())}
    pipeline = trainer.strategy.pipeline
    if isinstance(pipeline, Pipeline):
        busy, spent = sum(pipeline.take_busy().values()), pipeline.take_spent()
        report |= {"idle_share": 1 - busy / spent}
    return report


if __name__ == "__main__":
    run_entrypoint(main)
