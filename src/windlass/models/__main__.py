"""The process entry point of the package: `python -m windlass.models convert SRC DST`.

Input: a Hugging Face directory. Output: a checked copy of it in the form that we write, whose manifest
comes last; one line of JSON on standard output, {"done": ...} or {"error": ...}, and the exit code.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from windlass.models.files import COMPANIONS, CONFIG, read_config
from windlass.models.huggingface import load_model, save_model
from windlass.models.packed.dequantise_directory import dequantise_directory, packed_method
from windlass.models.quantised import without_quantisation
from windlass.models.recurrent_state import load_statistical
from windlass.models.vocabulary.convert_directory import converted_tokenizer
from windlass.spec.config import shape_from_config, special_tokens_of
from windlass.spec.errors import BadInput, InUse
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.shape import HmmShape, NgramShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir


def convert(
    source: Path, target: Path, *, max_shard_bytes: int | None = None, dequantise: bool = False
) -> dict[str, Any]:
    """Load, check and write a model; the target appears whole, with its manifest, or not at all."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InUse(f"{target}: exists already", hint="give an empty or new directory")
    config = read_config(source)
    method = packed_method(config)
    if method is not None:
        return _convert_packed(source, target, method, max_shard_bytes)
    _, quantised = without_quantisation(config, str(source / CONFIG))
    if quantised and not dequantise:
        raise BadInput(
            f"{source}: its weights are {quantised}, which only Windlass reads",
            hint="take the version that it was made from, or write float32 from what is left: --dequantise",
        )
    shape = shape_from_config(without_quantisation(config, str(source / CONFIG))[0], str(source / CONFIG))
    if isinstance(shape, NgramShape | HmmShape):
        return _copied(source, target, shape)
    model = load_model(source, dtype=torch.float32 if quantised else None)
    facts = {
        "family": model.shape.family,
        "parameters": model.parameter_count,
        "shape": model.shape.model_dump(exclude_defaults=False),
    }
    writer = DirectoryWriter(StoreDir(target))
    limit = {} if max_shard_bytes is None else {"max_shard_bytes": max_shard_bytes}
    save_model(model, writer, special_tokens=special_tokens_of(config), **limit)
    return _finished(source, writer, facts)


def _convert_packed(source: Path, target: Path, method: str, max_shard_bytes: int | None) -> dict[str, Any]:
    """Write GPTQ or AWQ weights as plain ones first, and convert these."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".dequantised-") as scratch:
        plain = Path(scratch) / source.name
        dequantise_directory(source, plain)
        return {**convert(plain, target, max_shard_bytes=max_shard_bytes), "dequantised": method}


def _copied(source: Path, target: Path, shape: NgramShape | HmmShape) -> dict[str, Any]:
    """Check a model that is tables, not weights, and write the same bytes."""
    load_statistical(source)
    writer = DirectoryWriter(StoreDir(target))
    for path in (source / CONFIG, *sorted(source.glob("*.safetensors"))):
        with path.open("rb") as read, writer.writing(path.name) as out:
            shutil.copyfileobj(read, out)
    facts = {"family": shape.family, "parameters": shape.parameters, "shape": shape.model_dump(mode="json")}
    return _finished(source, writer, facts)


def _finished(source: Path, writer: DirectoryWriter, facts: dict[str, Any]) -> dict[str, Any]:
    """Copy the files beside the weights, and commit."""
    for name in COMPANIONS:
        if (source / name).is_file():
            writer.write(name, (source / name).read_bytes())
    made = converted_tokenizer(source, read_config(source))
    if made is not None:
        writer.write("tokenizer.json", made)
    manifest = writer.commit({"model": facts})
    return {**facts, "files": sorted(manifest.files), "bytes": manifest.bytes, "digest": manifest.digest}


def main(argv: list[str]) -> int:
    """Run one command; its output is one line of JSON."""
    args = _parser().parse_args(argv)
    done = convert(args.source, args.target, max_shard_bytes=args.max_shard_bytes, dequantise=args.dequantise)
    emit({"done": done})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.models")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=EntrypointParser)
    verb = verbs.add_parser("convert", help="check a model directory and write it in our form")
    verb.add_argument("source", type=Path)
    verb.add_argument("target", type=Path)
    verb.add_argument("--max-shard-bytes", type=int)
    verb.add_argument("--dequantise", action="store_true", help="write int8 and int4 weights as float32")
    return parser


if __name__ == "__main__":
    run_entrypoint(main)
