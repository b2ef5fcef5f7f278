"""Our side of `windlass prove gguf`, in one process: answers, likelihoods and rendered templates.

Input: a job in JSON as the one argument. Output: one line of JSON, {"done": ...} or {"error": ...}.

    answers    model directory, prompts and llama.cpp's answers -> for each prompt, how many tokens agree
    text       model directory, text -> its negative log-likelihood in windows
    templates  files -> how many render as transformers renders them
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from jinja2 import TemplateError

from windlass.http.errors import ApiError
from windlass.models.huggingface import load_model
from windlass.serve.gateway.schemas.requests import ChatMessage
from windlass.serve.gateway.text.templates import compile_template
from windlass.spec.errors import WindlassError
from windlass.spec.protocol.entrypoint import emit, run_entrypoint

Talk = tuple[tuple[Literal["system", "user", "assistant"], str], ...]
TALKS: tuple[Talk, ...] = (
    (("user", "Hi"),),
    (("system", "Be brief."), ("user", "Why is the sky blue? é <b>")),
    (("user", "a"), ("assistant", "b"), ("user", "c")),
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def agreement(job: dict[str, Any]) -> dict[str, Any]:
    """Count the tokens of each answer that are our most likely ones too, and score the text."""
    torch.set_num_threads(job["threads"])
    model = load_model(job["model"], dtype=torch.float32).eval()
    codec = tokenizers.Tokenizer.from_file(str(Path(job["model"]) / "tokenizer.json"))
    agreed = [
        _agreed(model, codec, prompt, peer)
        for prompt, peer in zip(job["prompts"], job["answers"], strict=True)
    ]
    text = _likelihood(model, codec, job["text"], job["window"]) if job["text"] else None
    return {"agreed": agreed, "text": text}


def _agreed(model: Any, codec: Any, prompt: str, peer: dict[str, list[int]]) -> int:
    """Return how many tokens of the peer's answer we would have written; -1: the prompt has other tokens.

    Given the same past, a greedy decoder writes the most likely token, so one pass over the peer's answer
    tells where the two would part.
    """
    if codec.encode(prompt, add_special_tokens=False).ids != peer["prompt"]:
        return -1
    ids, answer = peer["prompt"], peer["answer"]
    with torch.no_grad():
        hidden = model(torch.tensor([[*ids, *answer[:-1]]]))
        best = model.logits(hidden[:, len(ids) - 1 :])[0].argmax(-1).tolist()
    return next(
        (n for n, (ours, theirs) in enumerate(zip(best, answer, strict=True)) if ours != theirs), len(answer)
    )


def _likelihood(model: Any, codec: Any, text: str, window: int) -> dict[str, Any]:
    ids = codec.encode(text, add_special_tokens=False).ids
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, window):
        piece = torch.tensor(ids[start : start + window])
        with torch.no_grad():
            scores = model.logits(model(piece[None])[:, :-1])[0].double().log_softmax(-1)
        total -= float(scores.gather(1, piece[1:, None]).sum())
        count += len(piece) - 1
    return {"ids": ids, "total": total, "count": count}


def templates(job: dict[str, Any]) -> dict[str, Any]:
    """Compare with transformers, whose renderer most models' authors test with."""
    different = [path for path in job["files"] if not _renders_equally(Path(path).read_text("utf-8"))]
    return {"equal": len(job["files"]) - len(different), "different": [Path(path).name for path in different]}


def _renders_equally(source: str) -> bool:
    return all(_ours(source, talk) == _theirs(source, talk) for talk in TALKS)


def _ours(source: str, talk: Talk) -> str | None:
    try:
        turns = [ChatMessage(role=role, content=content) for role, content in talk]
        return compile_template(source, where="template", special=SPECIAL).render(turns)
    except (WindlassError, ApiError):
        return None


def _theirs(source: str, talk: Talk) -> str | None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    turns = [{"role": role, "content": content} for role, content in talk]
    try:
        rendered: str = _compile_jinja_template(source).render(
            messages=turns, tools=None, documents=None, add_generation_prompt=True, **SPECIAL
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return None
    return rendered


def main(argv: list[str]) -> int:
    """Do the job that the argument names a file of."""
    job = json.loads(Path(argv[0]).read_bytes())
    emit({"done": templates(job) if "files" in job else agreement(job)})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
