"""The versions of the roll-back proof: two trained ones, and one for each defect.

They are kept, so a second proof starts at once. The models are real: they are trained on a part of Python's
documentation, so bits per byte are meaningful.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windlass.lab.proofs.rollback.bad_versions import SPOILERS, spoil
from windlass.registry.versions import Registry, Version
from windlass.runs.training import prepare, train
from windlass.spec.errors import ProcessFailed
from windlass.spec.job import Corpus, Job, MachineSpec, ModelSpec, TokenizerSpec, Train
from windlass.spec.protocol.progress import Progress

NAME = "proof"
VOCABULARY = 512
STEPS = 300
MODEL = ModelSpec(family="llama", layers=2, width=64, heads=4, context=128)


@dataclass(frozen=True)
class ProofVersions:
    """Two good versions, and the bad ones by their defects."""

    good: tuple[Version, Version]
    bad: dict[str, Version]


def make_versions(home: Path, say: Callable[[str], None], steps: int = STEPS) -> ProofVersions:
    """Make the versions that do not exist yet: first the two good ones, then the bad ones in order."""
    registry = Registry(home)
    known = registry.versions(NAME) if NAME in registry.names() else []
    if len(known) < 2:
        say(f"training two small models, {steps} steps each")
        for seed in (1, 2)[len(known) :]:
            _train(home, seed, steps)
        registry.promote(f"{NAME}@1")
    known = registry.versions(NAME)
    with tempfile.TemporaryDirectory(prefix="spoilt-", dir=home) as scratch:
        for kind in list(SPOILERS)[len(known) - 2 :]:
            registry.register(NAME, spoil(kind, known[0].path, Path(scratch) / kind))
    first, second, *bad = registry.versions(NAME)
    return ProofVersions((first, second), dict(zip(SPOILERS, bad, strict=True)))


def _train(home: Path, seed: int, steps: int) -> None:
    job = Job(
        name=NAME,
        seed=seed,
        corpus=Corpus(sources=(str(_topics()),), tokenizer=TokenizerSpec(vocabulary=VOCABULARY)),
        model=MODEL,
        train=Train(
            steps=steps, batch_sequences=8, learning_rate=3e-3, warmup_steps=min(20, steps // 2),
            evaluate_every=steps, checkpoint_every=steps,
        ),
        machine=MachineSpec(compile="off", threads=1),
    )  # fmt: skip
    folder = prepare(job, home, _quietly)
    if not train(folder, lambda _: None):
        raise KeyboardInterrupt
    if not folder.finished:
        raise ProcessFailed(f"run {folder.name} left no model")
    Registry(home).register(NAME, folder.result)


def _topics() -> Path:
    return Path(sysconfig.get_path("stdlib")) / "pydoc_data"


def _quietly(_progress: Progress) -> None:
    """Discard progress: training takes seconds here."""
