"""Finds the files of a model in a directory, without loading torch: config.json and safetensors.

Files of other formats are refused: they are pickles, and loading a pickle runs whatever is in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from windlass.spec.errors import BadInput, Damaged, NotFound
from windlass.store.manifest import load_manifest, verify
from windlass.store.store_dir import StoreDir

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt",
    "generation_config.json", "chat_template.jinja", "chat_template.json",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
)  # fmt: skip
"""Files next to the weights that are copied unchanged; the last line: how a sentence encoder pools."""
MAX_LISTED = 5


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of config.json."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such directory")
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(
            f"{folder}: no {CONFIG}", hint="a model directory holds config.json beside its weights"
        ) from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadInput(f"{path}: holds a {type(config).__name__}, not a table of fields")
    return config


def check_manifest(folder: Path) -> None:
    """Check a directory byte by byte, where a manifest says what was written."""
    place = StoreDir(folder)
    manifest = load_manifest(place)
    if manifest is not None:
        verify(place, manifest)


def weight_files(directory: Path) -> list[str]:
    """Return the names of the safetensors files that hold the weights."""
    if (directory / INDEX).exists():
        return _indexed(directory)
    if (directory / SINGLE).exists():
        return [SINGLE]
    pickles = sorted(path.name for pattern in PICKLES for path in directory.glob(pattern))
    if pickles:
        raise BadInput(
            f"{directory}: holds its weights as pickle ({pickles[0]}), which can run any code when loaded",
            hint="convert it where you trust it: "
            "transformers' from_pretrained(DIR).save_pretrained(OUT) writes safetensors",
        )
    raise NotFound(f"{directory}: no {SINGLE} and no {INDEX}", hint="is this a Hugging Face model directory?")


def open_tensors(path: Path, framework: Literal["pt", "np"]) -> Any:
    """Open one safetensors file, after its header was found to fit its length."""
    try:
        return safe_open(str(path), framework=framework)
    except FileNotFoundError:
        raise Damaged(f"{path}: listed in {INDEX} but missing", hint="fetch the model again") from None
    except (SafetensorError, OSError) as error:
        raise Damaged(
            f"{path}: not a whole safetensors file: {error}",
            hint="it was cut off or changed on its way; fetch it again",
        ) from None


def listed(names: list[str]) -> str:
    """Join the first few names."""
    shown = ", ".join(names[:MAX_LISTED])
    return shown if len(names) <= MAX_LISTED else f"{shown} and {len(names) - MAX_LISTED} more"


def _indexed(directory: Path) -> list[str]:
    path = directory / INDEX
    try:
        names = set(json.loads(path.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: not readable as an index: {error}") from None
    for name in names:
        # An index from elsewhere may not point outside of its directory.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise BadInput(
                f"{path}: names the file {name!r}", hint="shards must be in the directory of their index"
            )
    return sorted(names)
