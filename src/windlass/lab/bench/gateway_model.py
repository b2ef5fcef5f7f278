"""A model directory without weights, for a gateway in front of a mock engine: config and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
ROLES = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>")
PROMPT = "How does a windlass lift a heavy anchor, and which part of it carries the load?"


def write_words(folder: Path) -> Path:
    """Write a model directory without weights: a byte-level BPE trained on the sources of this package."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(ROLES),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROMPT, *_own_sources()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 0}))
    return folder


def _own_sources() -> list[str]:
    """Return text that every installation has: the sources of this package."""
    return [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
