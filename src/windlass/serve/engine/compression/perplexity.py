"""Perplexity of a served model: `python -m windlass.serve.engine.compression.perplexity MODEL CORPUS`.

The serving runner scores held-out text, so the result includes everything that serving does to the numbers:
integer weights and activations, keys and values in float16.

Input: a model directory and a built corpus. Output: events on standard output, the last {"done": ...}.

Legend: B windows, T tokens of a window, V vocabulary, R rows of scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.corpus.batches import read_windows, sample_count
from windlass.corpus.corpus_dir import load_corpus
from windlass.serve.engine.load import LoadOptions, open_runner, shape_in
from windlass.serve.engine.runner import BLOCK_TOKENS, Runner, Span
from windlass.serve.engine.step import EngineSettings
from windlass.spec.errors import BadInput
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint

MAX_ROWS = 256
"""Max tokens whose scores are in memory at once; a vocabulary may be large."""


def measure(directory: Path, corpus_path: Path, sequences: int | None = None) -> dict[str, Any]:
    """Score the first `sequences` windows of the held-out part, or all of them."""
    corpus = load_corpus(corpus_path)
    (shape, _), part = shape_in(directory), corpus.validation
    if corpus.tokenizer.vocabulary > shape.vocabulary:
        raise BadInput(
            f"{corpus_path}: its tokenizer has {corpus.tokenizer.vocabulary} tokens, "
            f"but the model knows {shape.vocabulary}",
            hint="build the corpus with the model's own tokenizer",
        )
    runner = open_runner(directory, LoadOptions(EngineSettings(slots=max(1, MAX_ROWS // shape.context))))
    total = min(sequences or (1 << 62), sample_count(len(part), shape.context))
    loss, seen = 0.0, 0
    for windows in _batches(total, max(1, MAX_ROWS // shape.context)):
        loss += summed_loss(runner, read_windows(part, windows, shape.context))
        seen += len(windows)
        progress = {"done": seen * shape.context, "total": total * shape.context, "unit": "tokens"}
        emit({"event": "progress", "stage": "evaluate", **progress})
    mean = loss / max(1, total * shape.context)
    return {
        "loss": mean,
        "perplexity": math.exp(min(mean, 700.0)),
        "bits_per_byte": mean * part.tokens / max(1, part.text_bytes) / math.log(2),
        "tokens": total * shape.context,
        "sequences": total,
        "precision": runner.precision,
    }


def summed_loss(runner: Runner, windows_BT: NDArray[np.int64]) -> float:
    """Return the summed cross-entropy, in nats, of all tokens but the first of each window."""
    length = windows_BT.shape[1] - 1
    wide = -(-length // BLOCK_TOKENS)
    tables = np.arange(len(windows_BT) * wide, dtype=np.int32).reshape(len(windows_BT), wide)
    total = 0.0
    for start in range(0, length, MAX_ROWS):
        end = min(start + MAX_ROWS, length)
        spans = [
            Span(slot, start, window[start:end].tolist(), outs=end - start)
            for slot, window in enumerate(windows_BT)
        ]
        total += _cost(runner.run(spans, tables).logits_BV, windows_BT[:, start + 1 : end + 1].reshape(-1))
    return total


def _cost(logits_RV: NDArray[np.float32], targets_R: NDArray[np.int64]) -> float:
    wide_RV = logits_RV.astype(np.float64)
    largest_R = wide_RV.max(axis=1)
    spread_R = np.log(np.exp(wide_RV - largest_R[:, None]).sum(axis=1))
    return float((spread_R + largest_R - wide_RV[np.arange(len(targets_R)), targets_R]).sum())


def _batches(total: int, size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, total, size):
        yield np.arange(start, min(start + size, total), dtype=np.int64)


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.serve.engine.compression.perplexity")
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--sequences", type=int)
    args = parser.parse_args(argv)
    emit({"done": measure(args.model, args.corpus, args.sequences)})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
