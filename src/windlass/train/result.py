"""Turns a finished run into a model directory that anyone can load.

Input: the weights, one at a time, as the last checkpoint has them: no process needs to hold them all.
Output: a Hugging Face directory (config.json, safetensors, tokenizer files) with windlass.json, which
says where the model comes from and how good it is, and a manifest.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass import __version__
from windlass.corpus.built import BuiltCorpus
from windlass.corpus.tokenizer import Tokenizer
from windlass.models.huggingface import WeightSource, save_weights
from windlass.spec.run import LINEAGE, RESULT, Run
from windlass.store.manifest import DirectoryWriter
from windlass.store.place import Place
from windlass.train.evaluate import Evaluation


def save_result(
    folder: Path, run: Run, source: WeightSource, corpus: BuiltCorpus, evaluation: Evaluation
) -> Path:
    """Write the model directory of a finished run."""
    target = folder / RESULT
    Place(target).remove()
    writer = DirectoryWriter(Place(target))
    tokenizer = corpus.tokenizer
    special_tokens = {"eos_token_id": tokenizer.end_id, "pad_token_id": tokenizer.pad_id}
    save_weights(run.shape, source, writer, special_tokens=special_tokens)
    writer.write("tokenizer.json", tokenizer.json)
    writer.write("tokenizer_config.json", _json(_tokenizer_config(tokenizer, run.shape.context)))
    lineage = _lineage(run, evaluation)
    writer.write(LINEAGE, _json(lineage))
    writer.commit({"kind": "model", "family": run.shape.family})
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


def _lineage(run: Run, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "job": run.job.model_dump(mode="json"),
        "shape": run.shape.model_dump(mode="json"),
        "parameters": run.shape.parameters,
        "corpus": run.corpus,
        "corpus_digest": run.corpus_digest,
        "start_from": run.start_from,
        "steps": run.steps,
        "tokens": run.steps * run.tokens_per_step,
        "code": __version__,
        "metrics": asdict(evaluation),
    }
