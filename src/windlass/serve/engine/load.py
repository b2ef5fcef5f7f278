"""From a model directory to an engine: which runner computes, in which precision, with how many blocks."""

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
from windlass.serve.engine.native import library
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import BLOCK_TOKENS, Causal, Runner, block_bytes
from windlass.serve.engine.step import Engine, EngineSettings
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput
from windlass.spec.shape import BertShape, Gpt2Shape, HmmShape, LlamaShape, MlpShape, NgramShape, Shape

if TYPE_CHECKING:
    from windlass.serve.engine.encoder import EncoderEngine
    from windlass.serve.engine.grammar.token_mask import Grammars

Which = Literal["auto", "native", "torch"]

SHARE_OF_MEMORY = 0.25
"""How much of the free memory blocks may take, if nothing is said."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    precision: str | None = None
    """None keeps what is stored."""
    runner: Which = "auto"
    threads: int | None = None
    keys_bytes: int | None = None
    """Memory for keys and values; None takes what all slots could need, up to a quarter of what is free."""
    half_keys: bool = True
    """Whether keys and values are kept in float16: half the memory to read for every token."""


def load_engine(
    directory: Path, options: LoadOptions, adapters: Mapping[str, Path] | None = None
) -> Engine | EncoderEngine:
    """Load a model, checked byte by byte where a manifest is, and make an engine of it."""
    shape, _ = shape_in(directory)
    if isinstance(shape, BertShape):
        return _encoder(directory, options)
    found = {name: load_adapter(path, shape, name) for name, path in (adapters or {}).items()}
    runner = open_runner(directory, options)
    numbers = {name: runner.take_adapter(adapter) for name, adapter in found.items()}
    grammars = _grammars(directory, shape.vocabulary)
    return Engine(runner, options.settings, adapters=numbers, grammars=grammars)


def shape_in(directory: Path) -> tuple[Shape, str]:
    """Return the shape that config.json tells, and the precision of the weights as stored."""
    where = str(directory / CONFIG)
    config, quantised = without_quantisation(read_config(directory), where)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return shape_from_config(config, where), quantised or stored


def open_runner(directory: Path, options: LoadOptions) -> Runner:
    """Load what continues a text, of any family."""
    match shape_in(directory)[0]:
        case MlpShape() | NgramShape() | HmmShape() as shape:
            return _state_runner(directory, shape, options)
        case BertShape():
            raise BadInput(
                f"{directory}: a bert model does not continue text", hint="`windlass eval` measures it"
            )
        case shape:
            return load_runner(directory, load_weights(directory), shape, options)


def load_runner(
    directory: Path, weights: ModelWeights, shape: LlamaShape | Gpt2Shape, options: LoadOptions
) -> Runner:
    """Choose what computes: the native library, or torch where there is a GPU or no library."""
    shared = None if options.runner == "torch" or _has_gpu(options) else library()
    if shared is None and options.runner == "native":
        raise BadInput(
            "the native library is not here, or does not run on this processor",
            hint="install windlass where a C++ compiler is, or leave --runner out",
        )
    if shared is None:
        return _torch_runner(directory, shape, options)
    half = options.half_keys
    return NativeRunner(
        shared, weights,
        blocks=block_count(shape, options, half=half),
        threads=options.threads or _cores(),
        precision=options.precision, half=half,
    )  # fmt: skip


def block_count(shape: Causal, options: LoadOptions, *, half: bool) -> int:
    """Return how many blocks to have: at least what one sequence of the whole context needs."""
    for_one = -(-shape.context // BLOCK_TOKENS)
    each = block_bytes(shape, half=half)
    if options.keys_bytes is not None:
        count = options.keys_bytes // each
        if count < for_one:
            raise BadInput(
                f"what is kept of one context of {shape.context} tokens need {for_one * each} bytes; "
                f"{options.keys_bytes} are allowed"
            )
        return int(count)
    free = int(psutil.virtual_memory().available * SHARE_OF_MEMORY) // each
    return max(for_one, min(options.settings.slots * for_one, free))


def _state_runner(directory: Path, shape: MlpShape | NgramShape | HmmShape, options: LoadOptions) -> Runner:
    from windlass.models.recurrent_state import load_statistical
    from windlass.serve.engine.state_runner import PRECISION, StateRunner

    if options.runner == "torch" or options.precision not in (None, PRECISION):
        asked = "by torch" if options.runner == "torch" else f"in {options.precision}"
        raise BadInput(
            f"{directory}: {shape.family} models are not computed {asked}",
            hint=f"they have one way, in {PRECISION}; leave the option out",
        )
    blocks, threads = block_count(shape, options, half=False), options.threads or _cores()
    return StateRunner(load_statistical(directory, threads), blocks=blocks, threads=threads)


def _torch_runner(directory: Path, shape: LlamaShape | Gpt2Shape, options: LoadOptions) -> Runner:
    import torch

    from windlass.models.huggingface import load_model
    from windlass.serve.engine.torch_runner import TorchRunner

    if options.precision in ("int8", "int4"):
        raise BadInput(f"{options.precision} weights need the native library, which is not here")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A processor multiplies float32 fastest; a GPU takes the weights as they are stored.
    dtype = (
        getattr(torch, options.precision) if options.precision else torch.float32 if device == "cpu" else None
    )
    model = load_model(directory, device=device, dtype=dtype)
    return TorchRunner(model, blocks=block_count(shape, options, half=False))


def _encoder(directory: Path, options: LoadOptions) -> EncoderEngine:
    import torch

    from windlass.models.huggingface import load_model
    from windlass.serve.engine.encoder import EncoderEngine

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return EncoderEngine(
        load_model(directory, device=device, dtype=torch.float32 if device == "cpu" else None)
    )


def _has_gpu(options: LoadOptions) -> bool:
    """Whether torch should compute because there is a GPU; torch is loaded only if a driver is there."""
    if options.runner == "native" or not Path("/proc/driver/nvidia").exists():
        return False
    import torch

    return torch.cuda.is_available()


def _grammars(directory: Path, vocabulary: int) -> Grammars | None:
    """Return what compiles grammars; a model without a tokenizer beside it has none."""
    if not (directory / "tokenizer.json").exists():
        return None
    from windlass.serve.engine.grammar.token_mask import Grammars

    return Grammars(directory, vocabulary, stop_tokens_of(directory, vocabulary))


def stop_tokens_of(directory: Path, vocabulary: int) -> list[int]:
    """Return the tokens that end a text, as the model's files name them."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        told: Any = json.loads(path.read_bytes()).get("eos_token_id") if path.exists() else None
        found.update(told if isinstance(told, list) else [told] if isinstance(told, int) else [])
    return sorted(token for token in found if 0 <= token < vocabulary)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
