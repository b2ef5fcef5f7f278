"""Evaluates a model on held-out text, in a separate process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.corpus.build import build_corpus
from windlass.registry.versions import Version
from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus, TokenizerSpec
from windlass.spec.processes import SCORING, TRAIN
from windlass.spec.protocol.progress import Report
from windlass.spec.run import LINEAGE
from windlass.store.manifest import MANIFEST


def corpus_to_measure_on(
    wanted: str | None, model: Path, version: Version | None, home: Path, report: Report
) -> Path:
    """Return the requested corpus, built if necessary, or the one that the model was trained on."""
    if wanted is not None:
        if (Path(wanted) / MANIFEST).exists():
            return Path(wanted)
        tokenizer = TokenizerSpec(kind="file", path=str(model / "tokenizer.json"))
        source = wanted if "://" in wanted or wanted.startswith("python:") else str(Path(wanted).absolute())
        return build_corpus(Corpus(sources=(source,), split="tail", tokenizer=tokenizer), home, report)
    file = model / LINEAGE
    lineage = version.lineage if version else json.loads(file.read_text()) if file.exists() else {}
    known = Path(str(lineage.get("corpus", "")))
    if not lineage.get("corpus") or not (known / MANIFEST).exists():
        raise BadInput(f"{model}: the corpus it was trained on does not exist", hint="name one with --corpus")
    return known


def score(model: Path, text: str, home: Path, *, threads: int | None = None) -> dict[str, Any]:
    """Return the log-probability of each token of a text."""
    done: dict[str, Any] = {}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(text)
        file.flush()
        args = [str(model), file.name, *(["--threads", str(threads)] if threads is not None else [])]
        with LocalProcess("scoring", SCORING, args, home / "logs" / "eval.log") as process:
            for event in process.events():
                done = event.get("done", done)
            process.check()
    return done


def measure(
    model: Path,
    corpus: Path,
    home: Path,
    tell: Callable[[dict[str, Any]], None],
    *,
    sequences: int | None = None,
    context: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Return loss, perplexity and bits per byte."""
    args = ["eval", str(model), str(corpus)]
    for option, value in (("--sequences", sequences), ("--context", context), ("--threads", threads)):
        if value is not None:
            if value < 1:
                raise BadInput(f"{option} {value}: must be at least 1")
            args += [option, str(value)]
    done: dict[str, Any] = {}
    with LocalProcess("evaluation", TRAIN, args, home / "logs" / "eval.log") as process:
        for event in process.events():
            tell(event)
            done = event.get("done", done)
        process.check()
    return done
