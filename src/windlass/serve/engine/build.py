"""Builds what an engine process serves from its command line: one model, or a pool of several."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from windlass.serve.engine.engine_api import EngineProtocol
from windlass.serve.engine.load import LoadOptions, block_count, load_engine, shape_in
from windlass.serve.engine.model_pool import ModelPool
from windlass.serve.engine.model_slot import ModelSlot
from windlass.serve.engine.runner import block_bytes
from windlass.serve.engine.step import EngineSettings
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import ModelInfo
from windlass.spec.shape import BertShape, HmmShape, NgramShape, Shape

WEIGHT_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.1, "int4": 0.7}
"""Bytes of a packed weight, its share of a scale included."""


def build_engine(args: argparse.Namespace) -> tuple[EngineProtocol, list[ModelInfo]]:
    """Load the model if it is the only one; several are loaded in the background while requests come in."""
    if len(args.model) != len(args.name):
        raise BadInput(
            f"got {len(args.model)} --model and {len(args.name)} --name; give each --model its --name"
        )
    options, adapters = options_of(args), _adapters(args.adapter, args.name)
    if len(args.model) == 1:
        engine = load_engine(args.model[0], options, adapters[args.name[0]])
        shape = engine.shape
        offered = ModelInfo(
            args.name[0], shape.family, shape.parameters, shape.context, shape.vocabulary, shape.width,
            engine.precision, list(adapters[args.name[0]]),
        )  # fmt: skip
        return engine, [offered]
    slots = [
        _slot(name, model, options, adapters[name]) for name, model in zip(args.name, args.model, strict=True)
    ]
    pool = ModelPool(slots, args.memory)
    pool.warm()
    return pool, pool.offered


def options_of(args: argparse.Namespace) -> LoadOptions:
    settings = EngineSettings(
        slots=args.slots,
        shares_prefixes=args.prefix_cache != "off",
        policy="lfu" if args.prefix_cache == "lfu" else "lru",
        drafts=not args.no_drafts,
    )
    return LoadOptions(
        settings, args.precision, args.runner, args.threads, args.keys_memory,
        args.keys == "float16",
    )  # fmt: skip


def _adapters(given: list[str], names: list[str]) -> dict[str, dict[str, Path]]:
    """Parse MODEL:NAME=DIR; the name of a model may contain a colon."""
    found: dict[str, dict[str, Path]] = {name: {} for name in names}
    for text in given:
        head, _, path = text.partition("=")
        model, _, adapter = head.rpartition(":")
        if model not in found or not adapter or not path:
            raise BadInput(f"--adapter {text}: must be MODEL:NAME=DIR, with MODEL one of {', '.join(names)}")
        found[model][adapter] = Path(path)
    return found


def _slot(name: str, directory: Path, options: LoadOptions, adapters: dict[str, Path]) -> ModelSlot:
    """Describe a model by its config.json alone; its weights are read when it is loaded."""
    shape, stored = shape_in(directory)
    precision = options.precision or stored
    kept = 0
    if not isinstance(shape, BertShape):
        half = options.half_keys
        kept = block_count(shape, options, half=half) * block_bytes(shape, half=half)
    offered = ModelInfo(
        name, shape.family, shape.parameters, shape.context, shape.vocabulary, shape.width,
        precision, list(adapters),
    )  # fmt: skip
    load: Callable[[], EngineProtocol] = lambda: load_engine(directory, options, adapters)  # noqa: E731
    return ModelSlot(offered, _model_bytes(directory, shape, precision) + kept, load)


def _model_bytes(directory: Path, shape: Shape, precision: str) -> int:
    """Return the memory of a model: packed weights, or tables, which are used as they are stored."""
    if isinstance(shape, NgramShape | HmmShape):
        return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return int(shape.parameters * WEIGHT_BYTES.get(precision, 4.0))
