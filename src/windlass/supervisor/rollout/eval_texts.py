"""Text to measure two versions on: what a person gave, what was held out, or what the old version says.

Held-out text says which version is better. Text that the old version wrote only says how far the new one is
from it, which even a better version is: it is the last resort, and the tolerance is wider.
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
"""Of one passage: enough to tell models apart, little enough not to hold up clients."""
MAX_READ = 1 << 22
OWN_PASSAGES = 24
OWN_TOKENS = 64
OWN_MORE = 0.25
"""By so much more may a version differ on text that the other one wrote."""
ANSWER_S = 60.0

ENCODERS = frozenset({"bert"})

Origin = Literal["file", "corpus", "own", "vectors"]


@dataclass(frozen=True)
class EvalText:
    """A piece of text; of a model without tokenizer, token ids."""

    text: str
    tokens: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return len(self.text.encode()) or len(self.tokens)


@dataclass(frozen=True)
class Passages:
    """What to measure on, and where it comes from."""

    origin: Origin
    passages: tuple[EvalText, ...]

    def draw(self, number: int) -> EvalText:
        """Choose one, the same for the same number."""
        return random.Random(number).choice(self.passages)


def read_held_out(path: Path) -> str:
    """Read a file of held-out text; refuse one that holds too little."""
    try:
        text = path.read_bytes()[:MAX_READ].decode("utf-8", errors="ignore")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    if len(text.split()) < 20:
        raise BadInput(f"{path}: holds {len(text.split())} words; that judges nothing", hint="give more text")
    return text


def find_passages(
    held_out: str, version: Version | None, served: ServedModel, asker: EngineClient
) -> Passages:
    """Return the best text there is; an encoder, which expects no tokens, gets any tokens at all."""
    offered = asker.ready.about(served.id)
    if offered.family in ENCODERS:
        return Passages("vectors", _arbitrary(offered))
    if not isinstance(served.text, NumberText):
        if held_out:
            return Passages("file", cut(read_held_out(Path(held_out)), asker.ready.context))
        text = _corpus_text(version)
        if text:
            return Passages("corpus", cut(text, asker.ready.context))
    return Passages("own", _own(served, asker))


def cut(text: str, context: int) -> tuple[EvalText, ...]:
    """Cut a text into passages that fit a context, whatever the tokens are."""
    length = max(8, min(MAX_CHARS, context // 4))
    pieces = (text[at : at + length] for at in range(0, len(text), length))
    return tuple(EvalText(piece) for piece in pieces if len(piece.strip()) >= length // 2)


def _corpus_text(version: Version | None) -> str:
    """Return the held-out part of the corpus that a version was trained on, if it is still here."""
    corpus = version.lineage.get("corpus") if version else None
    if not corpus or not (Path(str(corpus)) / MANIFEST).exists():
        return ""
    try:
        built = load_corpus(Path(str(corpus)))
        part = built.validation
        return built.tokenizer.decode(part.read(0, min(part.tokens, MAX_READ // 16)).tolist())
    except WindlassError:
        return ""  # a corpus that is damaged says nothing about the model; there is other text


def _arbitrary(offered: ModelInfo) -> tuple[EvalText, ...]:
    draw = random.Random(1)
    length = min(OWN_TOKENS, offered.context)
    return tuple(
        EvalText("", tuple(draw.randrange(offered.vocabulary) for _ in range(length)))
        for _ in range(OWN_PASSAGES)
    )


def _own(served: ServedModel, asker: EngineClient) -> tuple[EvalText, ...]:
    """Let the old version write, from one random token each."""
    offered = asker.ready.about(served.id)
    draw = random.Random(1)
    most = min(OWN_TOKENS, offered.context - 2)
    found = []
    for seed in range(OWN_PASSAGES):
        prompt = [draw.randrange(offered.vocabulary)]
        heard = asker.ask(Generate("", prompt, most, seed=seed, model=served.id), ANSWER_S)
        tokens = tuple(heard.tokens)
        text = "" if isinstance(served.text, NumberText) else served.text.decode(list(tokens))
        found.append(EvalText(text, tokens))
    return tuple(each for each in found if each.tokens)
