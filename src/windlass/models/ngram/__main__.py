"""Entry point of the family: `python -m windlass.models.ngram import FILE DIRECTORY | export DIRECTORY FILE`.

Input: an ARPA file, or a model directory. Output: the other; one line of JSON on standard output,
{"done": ...} or {"error": ...}, and the exit code. An imported model is one of words: its tokenizer cuts
text at white space.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from windlass.models.ngram.arpa import Arpa, read_arpa, write_arpa
from windlass.models.ngram.files import load, promised, save_model
from windlass.spec.errors import InUse, NotFound
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.shape import NgramShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

CONTEXT = 256
"""Context length of an imported model, which does not name one; its order is shorter."""
END, UNKNOWN = "<|end|>", "<|unknown|>"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


def take(source: Path, target: Path) -> dict[str, Any]:
    """Make a model directory of an ARPA file; it appears whole, with its manifest, or not at all."""
    if target.exists():
        raise InUse(f"{target}: exists already", hint="give a new directory")
    arpa = read_arpa(source, end_last=True)
    ngrams = tuple(len(level) for level in arpa.levels)
    shape = NgramShape(vocabulary=len(arpa.words), context=CONTEXT, order=len(ngrams), ngrams=ngrams)
    writer = DirectoryWriter(StoreDir(target))
    save_model(writer, shape, promised(arpa.levels), special_tokens={"eos_token_id": arpa.end})
    writer.write(TOKENIZER, tokenizer_of(arpa).to_str().encode())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "unk_token": UNKNOWN}
    writer.write(TOKENIZER_CONFIG, (json.dumps(config, indent=1) + "\n").encode())
    facts = {"family": shape.family, "parameters": shape.parameters, "shape": shape.model_dump(mode="json")}
    manifest = writer.commit({"kind": "model", "family": shape.family, "model": facts})
    return {**facts, "files": sorted(manifest.files), "bytes": manifest.bytes, "digest": manifest.digest}


def give(source: Path, target: Path) -> dict[str, Any]:
    """Write a model as an ARPA file, which appears whole or not at all."""
    if target.exists():
        raise InUse(f"{target}: exists already", hint="give a new file")
    model = load(source)
    words, unknown = spelled(source, model.shape.vocabulary)
    part = target.with_name(f".{target.name}.part{''.join(target.suffixes[-1:])}")
    try:
        write_arpa(part, model.levels, words, model.end, unknown)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return {"path": str(target), "bytes": target.stat().st_size, "ngrams": list(model.shape.ngrams)}


def tokenizer_of(arpa: Arpa) -> tokenizers.Tokenizer:
    """Return a tokenizer whose ids are those of the model; </s> is no word that a text could spell."""
    words = {word: i for i, word in enumerate(arpa.words) if i not in (arpa.end, arpa.unknown)}
    inner = tokenizers.Tokenizer(models.WordLevel({**words, UNKNOWN: arpa.unknown}, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([UNKNOWN, END])
    assert inner.token_to_id(END) == arpa.end
    return inner


def spelled(directory: Path, vocabulary: int) -> tuple[list[str], int | None]:
    """Return how the tokenizer of a model spells each id, and which id is the unknown one."""
    path = directory / TOKENIZER
    if not path.exists():
        raise NotFound(f"{directory}: no {TOKENIZER}, so its words have no spelling")
    known = tokenizers.Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    words = [f"<|{i}|>" for i in range(vocabulary)]
    for word, i in known.items():
        words[i] = word
    return words, known.get(UNKNOWN)


def main(argv: list[str]) -> int:
    """Run one command; its output is one line of JSON."""
    args = _parser().parse_args(argv)
    emit({"done": (take if args.verb == "import" else give)(args.source, args.target)})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.models.ngram")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=EntrypointParser)
    for verb in ("import", "export"):
        command = verbs.add_parser(verb)
        command.add_argument("source", type=Path)
        command.add_argument("target", type=Path)
    return parser


if __name__ == "__main__":
    run_entrypoint(main)
