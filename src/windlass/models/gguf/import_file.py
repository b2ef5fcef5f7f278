"""A GGUF file to a Hugging Face directory.

The path: `reader` checks the file, `hf_config` makes config.json of its metadata, `tensor_plan` says which
tensor becomes which, `safetensors_stream` writes them one piece at a time, `tokenizer_files` writes the
vocabulary. The result is checked like every model directory before its manifest makes it whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from windlass.models.files import CONFIG
from windlass.models.gguf.hf_config import architecture_of, config_of
from windlass.models.gguf.reader import GgufFile
from windlass.models.gguf.safetensors_stream import StreamedTensor, write_weights
from windlass.models.gguf.tensor_plan import PlannedTensor, plan_tensors
from windlass.models.gguf.tokenizer_files import special_ids, tokenizer_files
from windlass.models.weights import load_weights
from windlass.spec.config import network_from_config
from windlass.spec.errors import InUse
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

DTYPES = ("auto", "float32", "float16", "bfloat16")
STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float32"}
MAX_WIDENED = 1 << 30
"""Weights up to which a quantised model becomes float32, which loses nothing; above, bfloat16."""
HASH_BYTES = 1 << 22


def import_gguf(source: Path, target: Path, *, dtype: str = "auto") -> dict[str, Any]:
    """Write the directory; it appears whole, with its manifest, or not at all."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InUse(f"{target}: exists already", hint="give an empty or new directory")
    file = GgufFile(source)
    architecture = architecture_of(file)
    dtype = _dtype(file) if dtype == "auto" else dtype
    config = config_of(file, architecture, dtype) | special_ids(file)
    shape = network_from_config(config, str(source))
    planned = plan_tensors(file, architecture, config)
    texts = tokenizer_files(file, config["vocab_size"])
    writer = DirectoryWriter(StoreDir(target))
    write_weights([_streamed(file, each) for each in planned], dtype, writer)
    writer.write(CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    for name, text in texts.items():
        writer.write(name, text)
    load_weights(target)  # every name and size, as for a directory from elsewhere
    facts = {
        "family": shape.family,
        "parameters": sum(_weights(each) for each in planned),
        "shape": shape.model_dump(exclude_defaults=False),
        "source": _source(file, dtype),
    }
    manifest = writer.commit({"model": facts})
    return {**facts, "files": sorted(manifest.files), "bytes": manifest.bytes, "digest": manifest.digest}


def quantisation_of(file: GgufFile) -> str:
    """Return the type of most weights of the matrices: Q4_1, F16."""
    counts: Counter[str] = Counter()
    for info in file.tensors.values():
        if len(info.shape) > 1:
            counts[info.kind.name] += info.weights
    return counts.most_common(1)[0][0] if counts else "F32"


def _dtype(file: GgufFile) -> str:
    """Return the type that keeps the numbers of a file as they are, where that is not too large."""
    stored = STORED.get(quantisation_of(file))
    if stored is not None:
        return stored
    total = sum(info.weights for info in file.tensors.values())
    return "float32" if total <= MAX_WIDENED else "bfloat16"


def _streamed(file: GgufFile, planned: PlannedTensor) -> StreamedTensor:
    return StreamedTensor(planned.name, planned.shape, lambda: planned.pieces(file))


def _weights(planned: PlannedTensor) -> int:
    return StreamedTensor(planned.name, planned.shape, lambda: iter(())).weights


def _source(file: GgufFile, dtype: str) -> dict[str, Any]:
    """Where the version comes from, for its lineage."""
    digest = hashlib.sha256()
    with file.path.open("rb") as read:
        while block := read.read(HASH_BYTES):
            digest.update(block)
    name = file.metadata.get("general.name")
    return {
        "format": "gguf",
        "file": file.path.name,
        "sha256": digest.hexdigest(),
        "quantisation": quantisation_of(file),
        "written_as": dtype,
        **({"title": name[:200]} if isinstance(name, str) else {}),
        **({"license": lic[:200]} if isinstance(lic := file.metadata.get("general.license"), str) else {}),
    }
