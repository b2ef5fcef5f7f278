"""Log-probability of a given text, token by token: `python -m windlass.train.scoring MODEL FILE`.

The text is scored as a document: an end token precedes it, and its own end is not scored. In a text longer
than the context every window begins with the last token of the window before.

Input: a model directory with a tokenizer, a file of text. Output: {"done": {...}} on standard output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.corpus.tokenizer import load_tokenizer
from windlass.models.files import CONFIG, read_config
from windlass.models.quantised import without_quantisation
from windlass.models.recurrent_state import load_statistical
from windlass.spec.config import shape_from_config
from windlass.spec.errors import BadInput
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.shape import BertShape, HmmShape, MlpShape, NgramShape, Shape

MAX_TOKENS = 1 << 20

Logprobs = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""Inputs (T) and targets (T) of one window to the log-probability of each target."""


def score_text(directory: Path, text: str, threads: int | None = None) -> dict[str, Any]:
    """Return the log-probability of every token of a text, their sum, the perplexity and the bits per
    byte."""
    where = str(directory / CONFIG)
    config, _ = without_quantisation(read_config(directory), where)
    shape, tokenizer = shape_from_config(config, where), load_tokenizer(directory)
    tokens = tokenizer.encode(text)
    if not tokens or len(tokens) > MAX_TOKENS:
        raise BadInput(f"the text has {len(tokens)} tokens", hint=f"1 to {MAX_TOKENS} can be scored")
    logprobs = scored(_logprobs(directory, shape, threads), [tokenizer.end_id, *tokens], shape.context)
    total = float(logprobs.sum())
    return {
        "tokens": [
            {"id": token, "text": tokenizer.token_bytes(token).decode(errors="replace"), "logprob": logprob}
            for token, logprob in zip(tokens, logprobs.tolist(), strict=True)
        ],
        "logprob": total,
        "perplexity": math.exp(min(-total / len(tokens), 700.0)),
        "bits_per_byte": -total / math.log(2) / len(text.encode()),
    }


def scored(logprobs: Logprobs, tokens: list[int], context: int) -> NDArray[np.float64]:
    """Return the log-probability of all tokens but the first, window by window."""
    whole = np.array(tokens, np.int64)
    parts = [
        logprobs(whole[start : start + context][: len(whole) - 1 - start], whole[start + 1 :][:context])
        for start in range(0, len(whole) - 1, context)
    ]
    return np.concatenate(parts)


def _logprobs(directory: Path, shape: Shape, threads: int | None) -> Logprobs:
    match shape:
        case MlpShape() | NgramShape() | HmmShape():
            model = load_statistical(directory)
            return lambda inputs_T, targets_T: model.logprobs(inputs_T[None], targets_T[None])[0]
        case BertShape():
            raise BadInput(
                f"{directory}: a bert model sees both sides of a token and gives no text a probability"
            )
    return _logprobs_torch(directory, threads)


def _logprobs_torch(directory: Path, threads: int | None) -> Logprobs:
    import torch

    from windlass.models.huggingface import load_model
    from windlass.parallel.device import place_process
    from windlass.plan.local.machine import usable_cores
    from windlass.spec.job import MachineSpec

    device = place_process(MachineSpec(), threads or usable_cores())
    model = load_model(directory, dtype=torch.float32, device=device).eval()

    @torch.inference_mode()
    def logprobs(inputs_T: NDArray[np.int64], targets_T: NDArray[np.int64]) -> NDArray[np.float64]:
        x_1TD = model(torch.from_numpy(inputs_T)[None].to(device))
        scores_TV = torch.log_softmax(model.logits(x_1TD)[0].double(), dim=-1).cpu()
        found: NDArray[np.float64] = scores_TV.gather(1, torch.from_numpy(targets_T)[:, None])[:, 0].numpy()
        return found

    return logprobs


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.train.scoring")
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args(argv)
    emit({"done": score_text(args.model, args.file.read_text(encoding="utf-8"), args.threads)})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
