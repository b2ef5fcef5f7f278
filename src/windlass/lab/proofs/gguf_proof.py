"""Proves that a model imported from GGUF answers as llama.cpp does.

    packages -> GGUF file -> our import -> our most likely tokens  \\
                          -> llama.cpp, in its own environment      -> equal tokens, equal perplexity

llama.cpp computes twice: with the file's weights widened to float32 by itself, which is the same computation
as ours, and with the file as it is, where it also rounds activations to eight bits. Where no registry is
reachable, or llama.cpp is not installed, the figures of that part are null and `left_out` says why.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.lab.bench.contenders import default_folder, installed_peers
from windlass.lab.proofs.package_cache import (
    GEMMA3,
    SMOLLM2,
    PackagedFile,
    cache_folder,
    fetch,
    fetch_templates,
)
from windlass.registry.import_export import take_gguf
from windlass.spec.errors import NotFound, ProcessFailed, WindlassError
from windlass.spec.processes import GGUF_ANSWERS

DRIVER = "drivers/answer_gguf.py"
TOKENS, WINDOW = 64, 512
MAX_DIFFERENCE = 0.005
"""Of the perplexities, as a share."""
MAX_TEXT = 30_000
"""Characters of the text that are scored, about 7,500 tokens."""
QUESTIONS = (
    "What is the capital of France?", "Write a short poem about the sea.", "Explain gravity to a child.",
    "List three fruits.", "How do I boil an egg?", "Tell me a joke.", "What is 12 times 12?",
    "Who wrote Hamlet?", "Describe the colour blue.", "Give me advice for a job interview.",
    "What is photosynthesis?", "Translate 'good morning' into French.", "Name a planet with rings.",
    "Why is the sky blue?", "Write a haiku about snow.", "What does a compiler do?",
    "How many days are in a leap year?", "Summarise the story of Cinderella.", "What is the largest ocean?",
    "Suggest a name for a cat.",
)  # fmt: skip
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class _Subject:
    """A packaged model, and how it is asked."""

    name: str
    file: PackagedFile
    prompt: str


SUBJECTS = (_Subject("smollm2", SMOLLM2, CHAT), _Subject("gemma3", GEMMA3, "<bos>{}"))
NOTHING: dict[str, Any] = {"same": None, "as_stored": None, "difference": None, "difference_as_stored": None}


def prove_gguf(
    home: Path, tell: Callable[[str], None], *, prompts: int = 20, text: Path | None = None, threads: int = 1
) -> dict[str, Any]:
    """Compare both models with llama.cpp, and all templates with transformers. Return figures and reasons."""
    folder = home / "prove" / "gguf"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    left_out: dict[str, str] = {}
    found = {subject.name: NOTHING for subject in SUBJECTS}
    for subject in SUBJECTS:
        # The perplexity is measured on SmolLM2 alone; the other has no share in that figure.
        scored = text if subject.name == "smollm2" else None
        try:
            found[subject.name] = _compared(subject, folder, cache, tell, prompts, scored, threads)
        except WindlassError as error:
            left_out[subject.name] = error.message
            tell(f"{subject.name}: left out: {error.message}")
    figures: dict[str, Any] = {"prompts": prompts}
    for name, each in found.items():
        figures |= {f"{name}_same_tokens": each["same"], f"{name}_same_tokens_as_stored": each["as_stored"]}
    figures["perplexity_difference"] = found["smollm2"]["difference"]
    figures["perplexity_difference_as_stored"] = found["smollm2"]["difference_as_stored"]
    figures |= _templates(folder, cache, left_out)
    return {"figures": figures, "left_out": left_out}


def is_faithful(figures: dict[str, Any]) -> bool:
    """Whether SmolLM2 was compared, and nothing that was compared differs."""
    smollm2, gemma3 = figures["smollm2_same_tokens"], figures["gemma3_same_tokens"]
    same = smollm2 == figures["prompts"] and gemma3 in (None, figures["prompts"])
    near = abs(figures["perplexity_difference"] or 0.0) < MAX_DIFFERENCE
    return same and near and figures["templates_equal"] in (None, figures["templates"])


def _compared(
    subject: _Subject, folder: Path, cache: Path, tell: Callable[[str], None], prompts: int,
    text: Path | None, threads: int,
) -> dict[str, Any]:  # fmt: skip
    file = fetch(subject.file, cache)
    model = folder / subject.name
    take_gguf(file, model, folder, dtype="float32")
    tell(f"{subject.name}: imported")
    job: dict[str, Any] = {
        "file": str(file),
        "prompts": [subject.prompt.format(question) for question in QUESTIONS[:prompts]],
        "tokens": TOKENS,
        "text": text.read_text("utf-8")[:MAX_TEXT] if text else "",
        "window": WINDOW,
        "threads": threads,
    }
    found: dict[str, Any] = {}
    for name, difference, widened in (
        ("same", "difference", str(folder / f"{subject.name}.gguf")),
        ("as_stored", "difference_as_stored", None),
    ):
        peer = _llama_cpp({**job, "widened": widened})
        ours = _ours(folder, {**job, "model": str(model), "answers": peer["answers"]})
        found[name] = sum(agreed == TOKENS for agreed in ours["agreed"])
        found[difference] = _difference(ours["text"], peer["text"])
        tell(
            f"{subject.name}: {found[name]} of {len(job['prompts'])} answers are those of llama.cpp ({name})"
        )
    return found


def _difference(ours: dict[str, Any] | None, peer: dict[str, Any] | None) -> float | None:
    """Return by how much our perplexity is higher, as a share; infinite if the text has other tokens."""
    if ours is None or peer is None:
        return None
    if ours["ids"] != peer["ids"]:
        return math.inf
    return math.exp(ours["total"] / ours["count"] - peer["total"] / peer["count"]) - 1


def _llama_cpp(job: dict[str, Any]) -> dict[str, Any]:
    """Run the driver in the environment that bench/peers made."""
    peer = installed_peers(default_folder(), ["llama.cpp"])[0]
    script = peer.folder / DRIVER
    if not script.exists():
        raise NotFound(f"{script}: is missing", hint="renew the drivers: bench/peers --only llama.cpp")
    done = subprocess.run(
        [str(peer.folder / "bin" / "python"), str(script)],
        input=json.dumps(job) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=7200,
    )
    if done.returncode:
        raise ProcessFailed(f"llama.cpp ended with code {done.returncode}: {done.stderr[-300:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _ours(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    with LocalProcess("answers", GGUF_ANSWERS, [str(path)], folder / "answers.log") as process:
        return process.result()


def _templates(folder: Path, cache: Path, left_out: dict[str, str]) -> dict[str, Any]:
    try:
        files = fetch_templates(cache)
        done = _ours(folder, {"files": [str(path) for path in files]})
    except WindlassError as error:
        left_out["templates"] = error.message
        return {"templates": None, "templates_equal": None}
    if done["different"]:
        left_out["templates"] = f"differ from transformers: {', '.join(done['different'])}"
    return {"templates": len(files), "templates_equal": done["equal"]}
