"""Makes a compressed version of a model, and measures the loss in quality.

Input: a registered version or a model directory. Output: a registered version whose lineage records its
source and the method, with the perplexity of both on the same held-out text.

All files are made in a scratch directory; the version appears with its manifest, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.registry.evaluate import corpus_to_measure_on, measure
from windlass.registry.versions import Registry, Version, check_name, resolve_model
from windlass.spec.errors import BadInput
from windlass.spec.job import STDLIB
from windlass.spec.processes import COMPRESS, PERPLEXITY
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.run import LINEAGE
from windlass.store.manifest import MANIFEST, DirectoryWriter, verify
from windlass.store.store_dir import StoreDir

WEIGHTS = ("bfloat16", "int8", "int4")
MEASURED_TOKENS = 32768
"""Both models are measured on the same tokens, so the difference needs few tokens."""

NUMBERS = ("loss", "perplexity", "bits_per_byte", "tokens", "sequences")


@dataclass(frozen=True)
class CompressRequest:
    """Options of `compress`. `calibrate` and `text` are texts or built corpora; None: the model's own."""

    weights: str
    calibrate: str | None = None
    text: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class _Model:
    """The model to compress."""

    path: Path
    version: Version | None
    home: Path

    @property
    def lineage(self) -> dict[str, Any]:
        file = self.path / LINEAGE
        if self.version is not None:
            return self.version.lineage
        return dict(json.loads(file.read_text())) if file.exists() else {}


def compress(home: Path, reference: str, wanted: CompressRequest, report: Report) -> Version:
    """Make, measure and register the compressed version."""
    name, path, version = resolve_model(home, reference)
    model = _Model(path, version, home)
    target = wanted.name or (version.name if version else name.lower())
    check_name(target)
    home.mkdir(parents=True, exist_ok=True)
    with _scratch(home) as scratch:
        made = scratch / "model"
        calibrate_on, held_out = _calibration(model, wanted, report), _held_out(model, wanted, report)
        result = _make(model, made, wanted.weights, calibrate_on, report)
        facts: dict[str, Any] = {
            "from": str(version or path),
            "weights": wanted.weights,
            "was": result["was"],
            "calibrated_on": str(calibrate_on) if calibrate_on else None,
            "bytes_before": _weight_bytes(path),
            "bytes_after": _weight_bytes(made),
        }
        if held_out is not None:
            facts |= _measured(model, made, held_out, result["shape"], report)
        lineage = {**model.lineage, "shape": result["shape"], "parameters": result["parameters"]}
        lineage.pop("metrics", None)  # those of the original, on other tokens than these were measured on
        _add_lineage(made, {**lineage, "compressed": facts})
        return Registry(home).register(target, made)


@contextlib.contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """A directory that is removed however the block ends, also by an interrupt right after it was made."""
    path = home / f"compress-{secrets.token_hex(6)}"
    try:
        path.mkdir(parents=True)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _calibration(model: _Model, wanted: CompressRequest, report: Report) -> Path | None:
    """Return the corpus to calibrate on: the requested one; else, for 4 bits, the model's own if it exists.

    At 8 bits calibration makes no difference that can be measured (docs/log.md).
    """
    if wanted.calibrate and wanted.weights == "bfloat16":
        raise BadInput("--calibrate: rounding to bfloat16 takes no text", hint="leave it out")
    text = wanted.calibrate
    if text is None and (wanted.weights != "int4" or not _own_corpus_is_here(model)):
        return None
    return corpus_to_measure_on(text, model.path, model.version, model.home, report)


def _held_out(model: _Model, wanted: CompressRequest, report: Report) -> Path | None:
    """Return the corpus to measure on; None for a model without tokenizer."""
    if not (model.path / "tokenizer.json").exists():
        return None
    text = wanted.text or (None if _own_corpus_is_here(model) else STDLIB)
    return corpus_to_measure_on(text, model.path, model.version, model.home, report)


def _own_corpus_is_here(model: _Model) -> bool:
    corpus = model.lineage.get("corpus")
    return bool(corpus) and (Path(str(corpus)) / MANIFEST).exists()


def _make(
    model: _Model, made: Path, weights: str, calibrate_on: Path | None, report: Report
) -> dict[str, Any]:
    args = [str(model.path), str(made), "--weights", weights]
    args += ["--calibrate", str(calibrate_on)] if calibrate_on else []
    return _run("compress", COMPRESS, args, model.home, _passing_on(report))


def _measured(
    model: _Model, made: Path, corpus: Path, shape: dict[str, Any], report: Report
) -> dict[str, Any]:
    """Return the loss of both models on the same tokens."""
    sequences = max(1, MEASURED_TOKENS // int(shape["context"]))
    found = []
    for path, stage in ((model.path, "before"), (made, "after")):
        tell = _passing_on(report, stage)
        if shape["family"] == "bert":  # predicts masked tokens, which the engine does not
            found.append(measure(path, corpus, model.home, tell, sequences=sequences))
        else:
            args = [str(path), str(corpus), "--sequences", str(sequences)]
            found.append(_run("perplexity", PERPLEXITY, args, model.home, tell))
    before, after = ({name: result[name] for name in NUMBERS} for result in found)
    return {"before": before, "after": after, "measured_on": str(corpus)}


def _run(
    verb: str, module: str, args: list[str], home: Path, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    done: dict[str, Any] = {}
    log = home / "logs" / f"{verb}.log"
    with LocalProcess(verb, module, args, log) as process:
        for event in process.events():
            tell(event)
            done = event.get("done", done)
        process.check()
    return done


def _passing_on(report: Report, stage: str | None = None) -> Callable[[dict[str, Any]], None]:
    def tell(event: dict[str, Any]) -> None:
        if event.get("event") == "progress":
            report(Progress(stage or event["stage"], event["done"], event["total"], event["unit"]))

    return tell


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _add_lineage(made: Path, lineage: dict[str, Any]) -> None:
    """Write the lineage, and the manifest again with it."""
    place = StoreDir(made)
    manifest = verify(place)
    writer = DirectoryWriter(place)
    writer.include(manifest.files)
    writer.write(LINEAGE, (json.dumps(lineage, indent=1, ensure_ascii=False) + "\n").encode())
    writer.commit(manifest.meta)
