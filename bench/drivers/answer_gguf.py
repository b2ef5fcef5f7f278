"""llama.cpp on a GGUF file: greedy answers to prompts, and the log-likelihood of a text in windows.

Input: one line of JSON with `file`, `widened` (a path to write the file's weights to as float32 and to use
that, or null), `prompts`, `tokens`, `text`, `window` and `threads`. Output: one line of JSON with the ids of
each prompt and answer, and the summed negative log-likelihood of the text with the number of its tokens.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp
import numpy as np

FLOAT32_FILE = 0


def widen(source: str, target: str) -> str:
    """Let llama.cpp itself dequantise a file."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = FLOAT32_FILE, True, 1
    code = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code:
        raise SystemExit(f"llama_model_quantize returned {code}")
    return target


def answers(model: llama_cpp.Llama, prompts: list[str], tokens: int) -> list[dict[str, list[int]]]:
    """Continue each prompt with the most likely tokens, past the ends of answers."""
    found = []
    for prompt in prompts:
        ids = model.tokenize(prompt.encode(), add_bos=False, special=True)
        model.reset()
        answer: list[int] = []
        for token in model.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
            answer.append(int(token))
            if len(answer) == tokens:
                break
        found.append({"prompt": list(ids), "answer": answer})
    return found


def likelihood(model: llama_cpp.Llama, text: str, window: int) -> dict[str, Any]:
    """Score each window of a text by itself; its first token has no score."""
    ids = model.tokenize(text.encode(), add_bos=False, special=False)
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, window):
        piece = ids[start : start + window]
        model.reset()
        model.eval(piece)
        logits = model.scores[: len(piece) - 1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= float(scores[np.arange(len(piece) - 1), piece[1:]].sum())
        count += len(piece) - 1
    return {"ids": list(ids), "total": total, "count": count}


def main() -> None:
    job = json.loads(sys.stdin.readline())
    file = widen(job["file"], job["widened"]) if job["widened"] else job["file"]
    model = llama_cpp.Llama(
        file, n_ctx=1024, n_batch=1024, logits_all=bool(job["text"]), verbose=False,
        n_threads=job["threads"], n_threads_batch=job["threads"], type_k=0, type_v=0,
    )  # fmt: skip
    done: dict[str, Any] = {"version": llama_cpp.__version__}
    done["answers"] = answers(model, job["prompts"], job["tokens"])
    done["text"] = likelihood(model, job["text"], job["window"]) if job["text"] else None
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
