"""Texts to compare two versions on: a given file, the held-out part of a corpus, or text of the old version.

Held-out text shows which version is better. Text that the old version generated only shows how far the new
one is from it, and a better version differs too: it is the last resort, and the tolerance is wider.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windlass.corpus.corpus_dir import load_corpus
from windlass.registry.versions import Version
from windlass.serve.gateway.text.served_model import ServedModel
from windlass.serve.gateway.text.tokenise import NumberText
from windlass.spec.errors import BadInput, WindlassError
from windlass.spec.protocol.wire import Generate, ModelInfo
from windlass.store.manifest import MANIFEST
from windlass.supervisor.health.engine_client import EngineClient

MAX_CHARS = 200
"""Max length of one text: enough to compare models, short enough not to delay clients."""
MAX_READ = 1 << 22
OWN_TEXTS = 24
OWN_TOKENS = 64
OWN_MORE = 0.25
"""Added to the tolerance on text that the old version generated."""
ANSWER_S = 60.0

ENCODERS = frozenset({"bert"})

Origin = Literal["file", "corpus", "own", "vectors"]


@dataclass(frozen=True)
class EvalText:
    """A piece of text; token ids for a model without tokenizer."""

    text: str
    tokens: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return len(self.text.encode()) or len(self.tokens)


@dataclass(frozen=True)
class EvalTexts:
    """The texts to compare on, and where they come from."""

    origin: Origin
    texts: tuple[EvalText, ...]

    def draw(self, number: int) -> EvalText:
        """Choose one, always the same for the same number."""
        return random.Random(number).choice(self.texts)


def read_held_out(path: Path) -> str:
    """Read a file of held-out text; refuse one that holds too little."""
    try:
        text = path.read_bytes()[:MAX_READ].decode("utf-8", errors="ignore")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if len(text.split()) < 20:
        raise BadInput(
            f"{path}: holds {len(text.split())} words, at least 20 are needed", hint="give more text"
        )
    return text


def find_eval_texts(
    held_out: str, version: Version | None, served: ServedModel, client: EngineClient
) -> EvalTexts:
    """Return the best texts available; an encoder, which predicts no tokens, gets random tokens."""
    offered = client.ready.about(served.id)
    if offered.family in ENCODERS:
        return EvalTexts("vectors", _arbitrary(offered))
    if not isinstance(served.text, NumberText):
        if held_out:
            return EvalTexts("file", cut(read_held_out(Path(held_out)), client.ready.context))
        text = _corpus_text(version)
        if text:
            return EvalTexts("corpus", cut(text, client.ready.context))
    return EvalTexts("own", _own(served, client))


def cut(text: str, context: int) -> tuple[EvalText, ...]:
    """Cut a text into pieces that fit a context, whatever the tokenizer."""
    length = max(8, min(MAX_CHARS, context // 4))
    pieces = (text[at : at + length] for at in range(0, len(text), length))
    return tuple(EvalText(piece) for piece in pieces if len(piece.strip()) >= length // 2)


def _corpus_text(version: Version | None) -> str:
    """Return the held-out part of the corpus that a version was trained on, if it still exists."""
    corpus = version.lineage.get("corpus") if version else None
    if not corpus or not (Path(str(corpus)) / MANIFEST).exists():
        return ""
    try:
        built = load_corpus(Path(str(corpus)))
        part = built.validation
        return built.tokenizer.decode(part.read(0, min(part.tokens, MAX_READ // 16)).tolist())
    except WindlassError:
        return ""  # a damaged corpus says nothing about the model; there is other text


def _arbitrary(offered: ModelInfo) -> tuple[EvalText, ...]:
    draw = random.Random(1)
    length = min(OWN_TOKENS, offered.context)
    return tuple(
        EvalText("", tuple(draw.randrange(offered.vocabulary) for _ in range(length)))
        for _ in range(OWN_TEXTS)
    )


def _own(served: ServedModel, client: EngineClient) -> tuple[EvalText, ...]:
    """Generate texts with the old version, each from one random token."""
    offered = client.ready.about(served.id)
    draw = random.Random(1)
    max_tokens = min(OWN_TOKENS, offered.context - 2)
    found = []
    for seed in range(OWN_TEXTS):
        prompt = [draw.randrange(offered.vocabulary)]
        answer = client.ask(Generate("", prompt, max_tokens, seed=seed, model=served.id), ANSWER_S)
        tokens = tuple(answer.tokens)
        text = "" if isinstance(served.text, NumberText) else served.text.decode(list(tokens))
        found.append(EvalText(text, tokens))
    return tuple(each for each in found if each.tokens)
