"""Proves on the machines at hand that every layout trains the same model as one process.

    python -m windlass.lab.torch.layout_proof run FOLDER --rank R --world W --rendezvous HOST:PORT

Input: FOLDER/proof.json. All ranks go through the same list of cases; each case forms its own group
of the first ranks, the others wait for the next. Output: events, and FOLDER/result.json by rank 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from windlass.lab.proofs.layouts.comparison import (
    LOSS_TOLERANCE,
    PROOF,
    RESULT,
    WEIGHT_TOLERANCE,
    CaseDifference,
    LayoutsProof,
    figures_of,
    fits,
)
from windlass.parallel.device import device_of
from windlass.parallel.device_mesh import gathered, open_store
from windlass.plan.local.machine import MachineFacts, usable_cores
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.errors import WindlassError
from windlass.spec.job import SPARSE, Job
from windlass.spec.layout import parse_layout
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.rank import RankInfo, add_member, apply_affinity, member_of
from windlass.spec.run import Run
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.event_log import EventLog
from windlass.train.trainer import Trainer

MACHINE = MachineFacts(cores=1, memory_bytes=1 << 40, peak_flops=1e11, has_compiler=False)
"""Proofs depend on no measurement: the plan must be the same everywhere."""


_SPECIAL: dict[str, dict[str, Any]] = {
    "mlp": {"heads": None},
    **{family: {"experts": 4} for family in SPARSE},
    **{family: {"window": 24} for family in ("gemma2", "gemma3", "mistral")},
    "gpt_oss": {"experts": 4, "window": 24},
}
"""Keys of [model] that a family needs, or that show what is special about it."""


@dataclass
class LossCurve:
    """The losses and weights of a case."""

    losses: list[float] = field(default_factory=list)
    checkpoint: Path | None = None


class Prover:
    """One rank's run of all cases."""

    def __init__(self, folder: Path, proof: LayoutsProof, member: RankInfo) -> None:
        self._folder, self._proof, self._member = folder, proof, member
        self._store: Store | None = open_store(member) if member.world > 1 else None
        self._cases = 0

    def layouts(self) -> list[CaseDifference]:
        """Compare every layout with one process, family by family."""
        outcomes: list[CaseDifference] = []
        for family in self._proof.families:
            alone = self._train(family, [("", self._proof.steps)])
            for layout in self._proof.layouts:
                if not fits(family, layout):
                    continue
                curve = self._train(family, [(layout, self._proof.steps)])
                outcomes.append(self._compare(family, layout, alone, curve))
        return outcomes

    def reshard(self) -> list[CaseDifference]:
        """Continue a run under several layouts in turn, and compare it with an unchanged run."""
        outcomes: list[CaseDifference] = []
        steps = self._proof.steps
        for family in self._proof.families:
            alone = self._train(family, [("", steps * len(self._proof.layouts))])
            curve = self._train(family, [(layout, steps) for layout in self._proof.layouts])
            names = " -> ".join(layout or "one process" for layout in self._proof.layouts)
            outcomes.append(self._compare(family, names, alone, curve))
        return outcomes

    def _train(self, family: str, legs: Sequence[tuple[str, int]]) -> LossCurve | str:
        """Train leg by leg from checkpoint to checkpoint; return the losses, or why it failed."""
        self._cases += 1
        folder = self._folder / f"case-{self._cases:03d}"
        curve = LossCurve()
        for number, (layout, steps) in enumerate(legs):
            run = self._run(family, layout, sum(count for _, count in legs))
            failed = self._leg(run, folder, steps, curve, f"{self._cases}.{number}")
            if failed is not None:
                return failed
        return curve

    def _leg(self, run: Run, folder: Path, steps: int, curve: LossCurve, name: str) -> str | None:
        if self._member.rank >= run.layout.world:
            return None
        record = EventLog(folder, quiet=True, rank=self._member.rank)
        member = replace(self._member, world=run.layout.world)
        try:
            with self._group(member, name):
                trainer = Trainer(run, folder, record, member)
                trainer.restore()
                curve.losses += [trainer.train_step().loss for _ in range(steps)]
                curve.checkpoint = trainer.save()
        except (RuntimeError, WindlassError) as error:
            return str(error).strip().splitlines()[0]
        finally:
            record.close()
        return None

    @contextmanager
    def _group(self, member: RankInfo, name: str) -> Iterator[None]:
        if member.world == 1:
            yield
            return
        assert self._store is not None
        with gathered(PrefixStore(name, self._store), member, device_of(self._proof.machine)):
            yield

    def _run(self, family: str, layout: str, steps: int) -> Run:
        job = Job(
            name="proof",
            seed=7,
            model=self._proof.model.model_copy(update={"family": family, **_SPECIAL.get(family, {})}),
            train=self._proof.train.model_copy(update={"steps": steps}),
            machine=self._proof.machine,
            layout=parse_layout(layout),
        )
        corpus = CorpusFacts(**self._proof.corpus)
        return plan_run(job, corpus, replace(MACHINE, cores=usable_cores()))

    def _compare(
        self, family: str, layout: str, alone: LossCurve | str, curve: LossCurve | str
    ) -> CaseDifference:
        """Compare on rank 0, which took part in every case and so has all losses."""
        if isinstance(alone, str) or isinstance(curve, str):
            reason = alone if isinstance(alone, str) else str(curve)
            outcome = CaseDifference(family=family, layout=layout, failure=reason)
        else:
            outcome = CaseDifference(
                family=family,
                layout=layout,
                loss_difference=_worst(alone.losses, curve.losses),
                weight_difference=_weights_apart(alone, curve) if self._member.rank == 0 else 0.0,
            )
        if self._member.rank == 0:
            emit({"event": "case", **outcome.model_dump(), "equal": outcome.equal})
        return outcome


def _worst(wanted: Sequence[float], found: Sequence[float]) -> float:
    """Return the largest difference of two loss curves, relative to the loss."""
    return max((abs(a - b) / abs(a) for a, b in zip(wanted, found, strict=False)), default=0.0)


def _weights_apart(alone: LossCurve, curve: LossCurve) -> float:
    """Return the largest difference of any weight."""
    assert alone.checkpoint is not None
    assert curve.checkpoint is not None
    one, other = CheckpointReader(alone.checkpoint), CheckpointReader(curve.checkpoint)
    return max(float((one.read(name) - other.read(name)).abs().max()) for name in one.names())


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.lab.torch.layout_proof")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=EntrypointParser)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    add_member(run)
    args = parser.parse_args(argv)
    member = member_of(args)
    apply_affinity(member)
    torch.set_num_threads(1)
    proof = LayoutsProof.model_validate(json.loads((args.folder / PROOF).read_bytes()))
    prover = Prover(args.folder, proof, member)
    outcomes = prover.layouts() if proof.kind == "layouts" else prover.reshard()
    if member.rank == 0:
        result = {"figures": figures_of(outcomes), "cases": [o.model_dump() for o in outcomes]}
        result |= {"tolerances": {"loss": LOSS_TOLERANCE, "weights": WEIGHT_TOLERANCE}}
        (args.folder / RESULT).write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
