"""Loads a model directory into an engine: chooses the runner, the precision and the number of blocks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from windlass.models.files import CONFIG, read_config
from windlass.models.quantised import without_quantisation
from windlass.models.weights import ModelWeights, load_weights
from windlass.serve.engine.adapters import load_adapter
from windlass.serve.engine.native import library, missing_feature
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import BLOCK_TOKENS, Causal, Runner, block_bytes
from windlass.serve.engine.step import Engine, EngineSettings
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput
from windlass.spec.shape import BertShape, DecoderShape, HmmShape, MlpShape, NgramShape, Shape

if TYPE_CHECKING:
    from windlass.serve.engine.encoder import EncoderEngine
    from windlass.serve.engine.grammar.token_mask import Grammars

Which = Literal["auto", "native", "torch"]

SHARE_OF_MEMORY = 0.25
"""Share of the free memory that blocks may take by default."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    precision: str | None = None
    """None: as stored."""
    runner: Which = "auto"
    threads: int | None = None
    keys_bytes: int | None = None
    """Memory for keys and values; None: what all slots could need, up to a quarter of the free memory."""
    half_keys: bool = True
    """Whether keys and values are kept in float16: half the memory to read for every token."""


def load_engine(
    directory: Path, options: LoadOptions, adapters: Mapping[str, Path] | None = None
) -> Engine | EncoderEngine:
    """Load a model into an engine; its files are verified if there is a manifest."""
    shape, _ = shape_in(directory)
    if isinstance(shape, BertShape):
        return _encoder(directory, options)
    found = {name: load_adapter(path, shape, name) for name, path in (adapters or {}).items()}
    runner = open_runner(directory, options)
    numbers = {name: runner.take_adapter(adapter) for name, adapter in found.items()}
    grammars = _grammars(directory, shape.vocabulary)
    return Engine(runner, options.settings, adapters=numbers, grammars=grammars)


def shape_in(directory: Path) -> tuple[Shape, str]:
    """Return the shape of config.json, and the precision of the weights as stored."""
    where = str(directory / CONFIG)
    config, quantised = without_quantisation(read_config(directory), where)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return shape_from_config(config, where), quantised or stored


def open_runner(directory: Path, options: LoadOptions) -> Runner:
    """Load the runner of a causal model of any family."""
    match shape_in(directory)[0]:
        case MlpShape() | NgramShape() | HmmShape() as shape:
            return _state_runner(directory, shape, options)
        case BertShape():
            raise BadInput(
                f"{directory}: a bert model does not continue text", hint="`windlass eval` measures it"
            )
        case shape:
            return load_runner(directory, load_weights(directory), shape, options)


def load_runner(directory: Path, weights: ModelWeights, shape: DecoderShape, options: LoadOptions) -> Runner:
    """Choose the runner: the native library, or torch if there is a GPU or no library."""
    shared = None if options.runner == "torch" or _has_gpu(options) else library()
    missing = missing_feature(shape)
    if missing is not None and options.runner == "native":
        raise BadInput(
            f"{directory}: the native engine does not compute {missing} ="
            f" {getattr(shape, missing)!r} (family {shape.family})",
            hint="omit --runner: torch computes this model",
        )
    if shared is None and options.runner == "native":
        raise BadInput(
            "the native library is not installed, or does not run on this processor",
            hint="install windlass where a C++ compiler is available, or omit --runner",
        )
    if shared is None or missing is not None:
        return _torch_runner(directory, shape, options)
    half = options.half_keys
    return NativeRunner(
        shared, weights,
        blocks=block_count(shape, options, half=half),
        threads=options.threads or _cores(),
        precision=options.precision, half=half,
    )  # fmt: skip


def block_count(shape: Causal, options: LoadOptions, *, half: bool) -> int:
    """Return the number of blocks: at least what one sequence of the full context needs."""
    for_one = -(-shape.context // BLOCK_TOKENS)
    each = block_bytes(shape, half=half)
    if options.keys_bytes is not None:
        count = options.keys_bytes // each
        if count < for_one:
            raise BadInput(
                f"one sequence of {shape.context} tokens needs {for_one * each} bytes of keys and values; "
                f"{options.keys_bytes} are allowed"
            )
        return int(count)
    free = int(psutil.virtual_memory().available * SHARE_OF_MEMORY) // each
    return max(for_one, min(options.settings.slots * for_one, free))


def _state_runner(directory: Path, shape: MlpShape | NgramShape | HmmShape, options: LoadOptions) -> Runner:
    from windlass.models.recurrent_state import load_statistical
    from windlass.serve.engine.state_runner import PRECISION, StateRunner

    if options.runner == "torch" or options.precision not in (None, PRECISION):
        option = "by torch" if options.runner == "torch" else f"in {options.precision}"
        raise BadInput(
            f"{directory}: {shape.family} models are not computed {option}",
            hint=f"they are always computed in {PRECISION} on the CPU; omit the option",
        )
    blocks, threads = block_count(shape, options, half=False), options.threads or _cores()
    return StateRunner(load_statistical(directory, threads), blocks=blocks, threads=threads)


def _torch_runner(directory: Path, shape: DecoderShape, options: LoadOptions) -> Runner:
    import torch

    from windlass.models.huggingface import load_model
    from windlass.serve.engine.torch_runner import TorchRunner

    if options.precision in ("int8", "int4"):
        missing = missing_feature(shape)
        why = "is not installed" if missing is None else f"does not compute {missing} of this model"
        raise BadInput(f"{options.precision} weights need the native library, which {why}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A CPU multiplies float32 fastest; a GPU takes the weights as they are stored.
    dtype = (
        getattr(torch, options.precision) if options.precision else torch.float32 if device == "cpu" else None
    )
    model = load_model(directory, device=device, dtype=dtype)
    return TorchRunner(model, blocks=block_count(shape, options, half=False))


def _encoder(directory: Path, options: LoadOptions) -> EncoderEngine:
    import torch

    from windlass.models.huggingface import load_model
    from windlass.serve.engine.encoder import EncoderEngine, pooling_in

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return EncoderEngine(
        load_model(directory, device=device, dtype=torch.float32 if device == "cpu" else None),
        pooling=pooling_in(directory),
    )


def _has_gpu(options: LoadOptions) -> bool:
    """Whether torch should compute because there is a GPU; torch is imported only if there is a driver."""
    if options.runner == "native" or not Path("/proc/driver/nvidia").exists():
        return False
    import torch

    return torch.cuda.is_available()


def _grammars(directory: Path, vocabulary: int) -> Grammars | None:
    """Return the grammar compiler of a model, or None if its directory has no tokenizer."""
    if not (directory / "tokenizer.json").exists():
        return None
    from windlass.serve.engine.grammar.token_mask import Grammars

    return Grammars(directory, vocabulary, stop_tokens_of(directory, vocabulary))


def stop_tokens_of(directory: Path, vocabulary: int) -> list[int]:
    """Return the end-of-text tokens that the model's files declare."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        token_ids: Any = json.loads(path.read_bytes()).get("eos_token_id") if path.exists() else None
        found.update(
            token_ids if isinstance(token_ids, list) else [token_ids] if isinstance(token_ids, int) else []
        )
    return sorted(token for token in found if 0 <= token < vocabulary)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
