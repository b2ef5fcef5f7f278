"""Chooses the files of a model among all files of a repository, a store's directory or an archive.

Input: names, with forward slashes. Output: the names that an import reads. Code (`*.py`), pickles
(`pytorch_model.bin`), weights of other libraries and pictures are never chosen, so they are never fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from windlass.spec.errors import BadInput, NotFound

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
SMALL = (
    CONFIG, INDEX, "generation_config.json", "quantize_config.json", "windlass.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt",
    "chat_template.jinja", "chat_template.json",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
)  # fmt: skip
"""Files next to the weights. The last line: how a sentence encoder pools its vectors."""
POOLING = (CONFIG, SINGLE)
"""Files of a numbered module of a sentence encoder, such as 1_Pooling or 2_Dense."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_LISTED = 8
SPLIT = re.compile(r"-(\d{5})-of-\d{5}\.gguf$", re.IGNORECASE)
"""How llama.cpp names the parts of a model that is split."""


def small_files(names: Collection[str]) -> list[str]:
    """Return the files to read first; those of weights follow from them (`weight_files`)."""
    chosen = [name for name in names if name in SMALL or name == ADAPTER[0] or name.endswith(".tiktoken")]
    return sorted([*(name for name in chosen if "/" not in name), *_modules(names)])


def weight_files(names: Collection[str], index: bytes | None, where: str) -> list[str]:
    """Return the files with weights: those that the index lists, or the single one, or an adapter's."""
    if index is not None:
        return _indexed(names, index, where)
    for single in (SINGLE, ADAPTER[1]):
        if single in names:
            return [single]
    pickles = sorted(name for name in names if name.endswith(PICKLES) and "/" not in name)
    if pickles:
        raise BadInput(
            f"{where}: holds its weights as pickle ({listed(pickles)}), which can run any code when loaded",
            hint="convert it where you trust it: "
            "transformers' from_pretrained(DIR).save_pretrained(OUT) writes safetensors",
        )
    raise NotFound(f"{where}: no {SINGLE}, no {INDEX} and no .gguf file", hint="is this a language model?")


def only_gguf(names: Collection[str], where: str) -> str | None:
    """Return the GGUF file of a source without safetensors; None where there is a directory to import.

    Of a model that is split into several files it is the first.
    """
    found = sorted(name for name in names if name.lower().endswith(".gguf"))
    found = [name for name in found if (part := SPLIT.search(name)) is None or int(part[1]) == 1]
    if not found or SINGLE in names or INDEX in names:
        return None
    if len(found) > 1:
        raise BadInput(
            f"{where}: has several models: {listed(found)}", hint=f"choose one, e.g. {where}:{found[0]}"
        )
    return found[0]


def parts_of(file: str, names: Collection[str]) -> list[str]:
    """Return all files of a model of which one file is given: itself, or the parts of a split GGUF file."""
    if SPLIT.search(file) is None:
        return [file]
    stem = SPLIT.sub("", file)
    return sorted(name for name in names if SPLIT.search(name) and SPLIT.sub("", name) == stem)


def model_among(names: Collection[str], where: str) -> str:
    """Return the directory of the only model in a tree of files, or its GGUF file; "" is the root itself."""
    configs = (name for name in names if name.rpartition("/")[2] in (CONFIG, ADAPTER[0]))
    folders = {name.rpartition("/")[0] for name in configs}
    # A sentence encoder has a config.json in each of its modules, too: below that of the model.
    roots = sorted(f for f in folders if not any(_is_below(f, other) for other in folders))
    if len(roots) > 1:
        raise BadInput(
            f"{where}: has several models: {listed(roots)}", hint="unpack it, and import one directory"
        )
    if roots:
        return roots[0]
    gguf = only_gguf(names, where)
    if gguf is None:
        raise NotFound(f"{where}: no {CONFIG} and no .gguf file in it", hint="is this a model?")
    return gguf


def chosen_file(names: Collection[str], file: str, where: str) -> str:
    """Return a file that the source was to have."""
    if file not in names:
        models = [name for name in names if name.lower().endswith((".gguf", ".safetensors"))]
        raise NotFound(f"{where}: no file {file}", hint=f"it has {listed(sorted(models) or sorted(names))}")
    return file


def may_be_needed(name: str) -> bool:
    """Whether a file, in whatever directory of an archive, may belong to a model."""
    last = name.rpartition("/")[2]
    return last in SMALL or last in ADAPTER or last.lower().endswith((".safetensors", ".gguf", ".tiktoken"))


def listed(names: Iterable[str]) -> str:
    """Join the first few names."""
    shown = list(names)
    text = ", ".join(shown[:MAX_LISTED])
    return text if len(shown) <= MAX_LISTED else f"{text} and {len(shown) - MAX_LISTED} more"


def _is_below(folder: str, other: str) -> bool:
    return folder != other and (other == "" or folder.startswith(f"{other}/"))


def _modules(names: Collection[str]) -> list[str]:
    if "modules.json" not in names:
        return []
    split = [(name, *name.split("/")) for name in names if name.count("/") == 1]
    return [name for name, folder, file in split if folder[:1].isdigit() and file in POOLING]


def _indexed(names: Collection[str], index: bytes, where: str) -> list[str]:
    try:
        shards = set(json.loads(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{where}: {INDEX} is not readable as an index: {error}") from None
    strange = [shard for shard in shards if not isinstance(shard, str) or not shard.endswith(".safetensors")]
    if strange:
        raise BadInput(f"{where}: {INDEX} names the file {strange[0]!r}", hint="shards are *.safetensors")
    missing = sorted(shards - set(names))
    if missing:
        raise NotFound(f"{where}: {INDEX} lists {listed(missing)}, which is not there")
    return sorted(shards)
