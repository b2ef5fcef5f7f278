"""Writes the model directory of a finished run.

Input: the weights from the last checkpoint, one at a time, so no process holds them all; or, for a family
that is not a network, a function that writes its files. Output: a directory in Hugging Face format
(config.json, safetensors, tokenizer files) with windlass.json, which has the lineage and the metrics of the
model, and a manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass import __version__
from windlass.corpus.corpus_dir import BuiltCorpus
from windlass.corpus.tokenizer import Tokenizer
from windlass.models.huggingface import WeightSource, save_weights
from windlass.spec.run import LINEAGE, RESULT, Run
from windlass.spec.shape import Shape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.train.evaluate import Evaluation

SpecialTokens = Mapping[str, int | list[int] | None]
WriteModel = Callable[[DirectoryWriter, SpecialTokens], Shape]
"""Writes config.json and the weights; returns the final shape."""


def save_result(
    folder: Path, run: Run, source: WeightSource, corpus: BuiltCorpus, evaluation: Evaluation
) -> Path:
    """Write the model directory of a finished run of a network."""

    def write(writer: DirectoryWriter, special_tokens: SpecialTokens) -> Shape:
        save_weights(run.network, source, writer, special_tokens=special_tokens)
        return run.network

    return save_directory(folder, run, write, corpus, evaluation)


def save_directory(
    folder: Path, run: Run, write: WriteModel, corpus: BuiltCorpus, evaluation: Evaluation
) -> Path:
    """Write the model directory of a finished run of any family."""
    target = folder / RESULT
    StoreDir(target).remove()
    writer = DirectoryWriter(StoreDir(target))
    tokenizer = corpus.tokenizer
    shape = write(writer, {"eos_token_id": tokenizer.end_id, "pad_token_id": tokenizer.pad_id})
    writer.write("tokenizer.json", tokenizer.json)
    writer.write("tokenizer_config.json", _json(_tokenizer_config(tokenizer, shape.context)))
    writer.write(LINEAGE, _json(_lineage(run, shape, evaluation)))
    writer.commit({"kind": "model", "family": shape.family})
    return target


def _tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    """Tell transformers which tokens are special; it reads the rest from tokenizer.json."""
    config = {
        **tokenizer.config,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "eos_token": tokenizer.token(tokenizer.end_id),
        "pad_token": tokenizer.token(tokenizer.pad_id),
    }
    if tokenizer.mask_id is not None:
        config["mask_token"] = tokenizer.token(tokenizer.mask_id)
    return config


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _lineage(run: Run, shape: Shape, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "job": run.job.model_dump(mode="json"),
        "shape": shape.model_dump(mode="json"),
        "parameters": shape.parameters,
        "corpus": run.corpus,
        "corpus_digest": run.corpus_digest,
        "start_from": run.start_from,
        "steps": run.steps,
        "tokens": run.steps * run.tokens_per_step,
        "code": __version__,
        "metrics": asdict(evaluation),
    }
