"""Prepares a layouts proof, starts the processes that do it, and returns their result.

The model is small and real: it is trained on a part of Python's documentation. This proves the code of the
layouts on the machines and the network at hand.
"""

from __future__ import annotations

import json
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from windlass.cluster.launch.launcher import Launch, free_port, interrupts
from windlass.cluster.launch.local_ranks import RankTask
from windlass.cluster.launch.rendezvous import NodeGroup
from windlass.corpus.build import build_corpus
from windlass.lab.proofs.layouts.comparison import PROOF, RESULT, LayoutsProof
from windlass.runs.training import corpus_facts
from windlass.spec.job import Corpus, MachineSpec, ModelSpec, TokenizerSpec, Train
from windlass.spec.layout import parse_layout
from windlass.spec.processes import LAYOUT_PROOF
from windlass.spec.protocol.entrypoint import INTERRUPTED
from windlass.spec.protocol.progress import Report

MODEL = ModelSpec(layers=4, width=64, heads=4, context=64)
TRAIN = Train(batch_sequences=12, learning_rate=1e-3)
VOCABULARY = 509
"""A prime number: no layout divides it evenly."""


def prove(
    kind: Literal["layouts", "reshard"],
    home: Path,
    *,
    families: Sequence[str],
    layouts: Sequence[str],
    steps: int,
    report: Report,
    tell: Callable[[dict[str, Any]], None],
    node_group: NodeGroup | None = None,
) -> dict[str, Any]:
    """Run a proof and return its result; INTERRUPTED is raised as KeyboardInterrupt."""
    node_group = node_group or NodeGroup()
    corpus = build_corpus(_corpus(), home, report)
    proof = LayoutsProof(
        kind=kind,
        families=tuple(families),
        layouts=tuple(layouts),
        steps=steps,
        model=MODEL,
        train=TRAIN.model_copy(update={"warmup_steps": min(5, steps // 2)}),
        machine=MachineSpec(compile="off", threads=1),
        corpus=asdict(corpus_facts(corpus)),
    )
    world = max(parse_layout(layout).world for layout in layouts)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="proof-", dir=home) as scratch:
        folder = Path(scratch)
        (folder / PROOF).write_text(proof.model_dump_json())
        launch = Launch(node_group.rank_launchers(world, LAYOUT_PROOF))
        port = free_port(node_group.host, time.monotonic_ns())
        with interrupts(launch.interrupt):
            done = launch.run(RankTask(str(folder), world, f"{node_group.host}:{port}", threads=1), tell)
        if not done:
            raise KeyboardInterrupt(INTERRUPTED)
        result: dict[str, Any] = json.loads((folder / RESULT).read_bytes())
    return result


def _corpus() -> Corpus:
    topics = Path(sysconfig.get_path("stdlib")) / "pydoc_data"
    return Corpus(sources=(str(topics),), tokenizer=TokenizerSpec(vocabulary=VOCABULARY))
