"""What an engine's process serves, from its command line: one model, or several on a shelf."""

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
"""Of a packed weight, its part of a scale included."""


def open_station(args: argparse.Namespace) -> tuple[EngineProtocol, list[ModelInfo]]:
    """Load the one model that is asked for; several are loaded while the first requests come in."""
    if len(args.model) != len(args.name):
        raise BadInput(f"{len(args.model)} models have {len(args.name)} names; give each --model its --name")
    options, adapters = options_of(args), _adapters(args.adapter, args.name)
    if len(args.model) == 1:
        engine = load_engine(args.model[0], options, adapters[args.name[0]])
        shape = engine.shape
        offered = ModelInfo(
            args.name[0], shape.family, shape.parameters, shape.context, shape.vocabulary, shape.width,
            engine.precision, list(adapters[args.name[0]]),
        )  # fmt: skip
        return engine, [offered]
    volumes = [
        _volume(name, model, options, adapters[name])
        for name, model in zip(args.name, args.model, strict=True)
    ]
    shelf = ModelPool(volumes, args.memory)
    shelf.warm()
    return shelf, shelf.offered


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
    """Read MODEL:NAME=DIR; the name of a model may hold a colon itself."""
    found: dict[str, dict[str, Path]] = {name: {} for name in names}
    for text in given:
        head, _, path = text.partition("=")
        model, _, adapter = head.rpartition(":")
        if model not in found or not adapter or not path:
            raise BadInput(f"--adapter {text}: not MODEL:NAME=DIR with one of the models {', '.join(names)}")
        found[model][adapter] = Path(path)
    return found


def _volume(name: str, directory: Path, options: LoadOptions, adapters: dict[str, Path]) -> ModelSlot:
    """Say what is known of a model by its config.json; its weights are looked at when they are loaded."""
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
    """Return what a model takes in memory: packed weights, or tables, which are computed from as they lie."""
    if isinstance(shape, NgramShape | HmmShape):
        return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return int(shape.parameters * WEIGHT_BYTES.get(precision, 4.0))
