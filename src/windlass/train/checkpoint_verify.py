"""Verifies a checkpoint in a fresh process: `python -m windlass.train.checkpoint_verify RUN`.

Input: a run's directory, and which of its checkpoints. This process, which shares nothing with the one that
wrote it, checks every byte against the manifest, assembles the model, computes a loss, and compares it with
the one in the journal. Output: one event with the findings.

The journal has the loss at no extra cost: the loss of the step after the checkpoint is the loss of exactly
these weights on samples that are known by their position. An evaluation at that step serves too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from windlass.corpus.batches import read_batch
from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.models.build import outline
from windlass.models.language import LanguageModel
from windlass.models.loss import summed_loss
from windlass.parallel.device import place_process
from windlass.parallel.param_shard import whole
from windlass.spec.errors import Damaged, NotFound, WindlassError
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.run import CHECKPOINTS, JOURNAL, RUN_FILE, Run
from windlass.spec.shape import HmmShape
from windlass.store.journal import Journal
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import STATE, State, committed
from windlass.train.checkpoint.checkpointer import Copies, step_of
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.checkpoint.shard import MOMENTS
from windlass.train.data_loader import build_objective
from windlass.train.evaluate import evaluate
from windlass.train.hmm.verify import hold

TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
"""Relative, of the loss: another layout adds up in another order."""
MAX_SEQUENCES = 256
"""An evaluation on more than this is not repeated."""
BACKGROUND = 15

Tier = Literal["local", "store"]


@dataclass(frozen=True)
class Findings:
    """The result of verifying one checkpoint."""

    tier: Tier
    step: int
    ok: bool
    message: str
    there: bool = True
    """False if the tier has no such checkpoint."""
    bytes: int = 0
    digest: str = ""
    loss: float | None = None
    expected: float | None = None
    seconds: float = 0.0


def main(argv: list[str]) -> int:
    args = _parse(argv)
    if args.background:
        os.nice(BACKGROUND)
    run = Run.model_validate_json((args.folder / RUN_FILE).read_bytes())
    place_process(run.job.machine.model_copy(update={"device": "cpu"}), 1 if args.background else run.threads)
    emit({"done": asdict(verify_checkpoint(args.folder, run, args.tier, args.step))})
    return 0


def verify_checkpoint(folder: Path, run: Run, tier: Tier, step: int | None = None) -> Findings:
    """Verify a checkpoint of a tier: that of a step, or the newest. Problems are returned, not raised."""
    begin, checked_step = time.monotonic(), -1 if step is None else step
    try:
        with _here(folder, tier, step) as path:
            checked_step = step_of(path.name)
            found = _verify_network(folder, run, tier, path)
    except WindlassError as failure:
        there = not isinstance(failure, NotFound)
        found = Findings(tier, checked_step, ok=False, message=failure.message, there=there)
    return Findings(**{**asdict(found), "seconds": round(time.monotonic() - begin, 2)})


def _verify_network(folder: Path, run: Run, tier: Tier, path: Path) -> Findings:
    if isinstance(run.shape, HmmShape):
        return _verify_hmm(folder, run, tier, path)
    manifest = verify(StoreDir(path))
    state = State(**json.loads((path / STATE).read_bytes()))
    model, corpus = load_weights(run, path), load_corpus(Path(run.corpus))
    recorded = _recorded_loss(folder, run, state)
    loss = _loss(run, corpus, model, state, recorded)
    apart = abs(loss - recorded.loss) / max(abs(recorded.loss), 1e-9) if recorded else 0.0
    ok = math.isfinite(loss) and apart <= TOLERANCE[run.job.machine.precision]
    what = f"as {recorded.what} recorded: {recorded.loss:.6f}" if recorded else "nothing to compare it with"
    message = f"{len(manifest.files)} files whole; loss {loss:.6f}, {what}"
    expected = recorded.loss if recorded else None
    return Findings(
        tier, state.step, ok, message,
        bytes=manifest.bytes, digest=manifest.digest, loss=loss, expected=expected,
    )  # fmt: skip


def _verify_hmm(folder: Path, run: Run, tier: Tier, path: Path) -> Findings:
    manifest, held = verify(StoreDir(path)), hold(folder, run, path)
    what = (
        "nothing to compare it with"
        if held.expected is None
        else f"as {held.what} recorded: {held.expected:.6f}"
    )
    return Findings(
        tier, held.step, held.ok, f"{len(manifest.files)} files whole; loss {held.loss:.6f}, {what}",
        bytes=manifest.bytes, digest=manifest.digest, loss=held.loss, expected=held.expected,
    )  # fmt: skip


@dataclass(frozen=True)
class _RecordedLoss:
    """A loss that the run told of: of the step after a checkpoint, or of an evaluation."""

    what: str
    loss: float
    sequences: int | None = None
    """Number of validation sequences; None for the samples of the next step."""


def _recorded_loss(folder: Path, run: Run, state: State) -> _RecordedLoss | None:
    """Find in the journal what this checkpoint can be held to; the newest word counts."""
    next_step = evaluation = None
    for record in Journal(StoreDir(folder), JOURNAL).read():
        if record.get("event") == "step" and record.get("step") == state.step + 1:
            next_step = _RecordedLoss(f"step {state.step + 1}", float(record["loss"]))
        elif record.get("event") == "evaluation" and record.get("step") == state.step:
            evaluation = _RecordedLoss("the evaluation", float(record["loss"]), int(record["sequences"]))
    if next_step is not None and not run.layout.asynchronous:  # whose steps mix weights of several ages
        return next_step
    small = evaluation is not None and (evaluation.sequences or 0) <= MAX_SEQUENCES
    return evaluation if small else None


def _loss(
    run: Run, corpus: BuiltCorpus, model: LanguageModel, state: State, recorded: _RecordedLoss | None
) -> float:
    if recorded is None or recorded.sequences is not None:
        sequences = recorded.sequences if recorded else 4
        objective = build_objective(run, corpus)
        return evaluate(
            lambda batch: _summed(model, *batch), corpus.validation, objective,
            context=run.network.context, sequences=sequences,
        ).loss  # fmt: skip
    return _loss_of_step(run, corpus, model, state.samples)


def _loss_of_step(run: Run, corpus: BuiltCorpus, model: LanguageModel, samples: int) -> float:
    """Return the loss on the samples of the step that begins at position `samples`."""
    objective, context = build_objective(run, corpus), run.network.context
    positions = np.arange(samples, samples + run.batch_sequences, dtype=np.int64)
    summed = 0.0
    for at in range(0, len(positions), run.micro_batch_sequences):
        own = positions[at : at + run.micro_batch_sequences]
        tokens = read_batch(corpus.train, own, context=context, seed=run.job.seed)
        example = objective.examples(tokens, own)
        summed += float(_summed(model, example.inputs_BT, example.targets_BT))
    return summed / (run.batch_sequences * objective.num_targets(context))


@torch.inference_mode()
def _summed(model: LanguageModel, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    return summed_loss(model, model(inputs_BT), targets_BT)


def load_weights(run: Run, path: Path) -> LanguageModel:
    """Assemble a whole model from a checkpoint of any layout; also check that its moments are complete."""
    model, source = outline(run.network), CheckpointReader(path)
    model.to_empty(device="cpu")
    model.place_tables(torch.device("cpu"))
    for name, parameter in model.named_parameters():
        box = whole(parameter.shape)
        source.check(name, parameter.shape, box)
        for kind in (kind for kind in MOMENTS if source.has(name, kind)):
            source.check(name, parameter.shape, box, kind)
        source.read_into(parameter, name, box)
        if not parameter.isfinite().all():
            raise Damaged(f"{path}: '{name}' has values that are not finite")
    return model.eval()


@contextmanager
def _here(folder: Path, tier: Tier, step: int | None) -> Iterator[Path]:
    """Yield the directory of a checkpoint; one from the store is downloaded temporarily."""
    if tier == "local":
        yield _chosen({path.name: path for path in committed(folder / CHECKPOINTS)}, step, str(folder))
        return
    copies = Copies.of(folder)
    if copies is None:
        raise NotFound(f"{folder}: no checkpoint was uploaded to a store")
    name = _chosen({name: Path(name) for name in copies.names()}, step, "the store").name
    with tempfile.TemporaryDirectory(prefix="verify-", dir=folder) as scratch:
        copies.fetch(name, Path(scratch) / name)
        yield Path(scratch) / name


def _chosen(found: dict[str, Path], step: int | None, where: str) -> Path:
    name = max(found, default="") if step is None else f"step-{step:08d}"
    if name not in found:
        raise NotFound(f"{where}: has no finished checkpoint{'' if step is None else f' of step {step}'}")
    return found[name]


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog="python -m windlass.train.checkpoint_verify")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tier", choices=("local", "store"), default="local")
    parser.add_argument("--step", type=int)
    parser.add_argument("--background", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
