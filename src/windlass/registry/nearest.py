"""Finds the tokens with the nearest embedding vectors, in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.corpus.tokenizer import FILE, Tokenizer, load_tokenizer
from windlass.spec.errors import BadInput
from windlass.spec.processes import NEAREST_TOKENS


def find_near(model: Path, token: str, *, count: int, by_id: bool, logs: Path) -> dict[str, Any]:
    """Return the token and its neighbours, nearest first."""
    if not (model / FILE).is_file():
        raise BadInput(f"{model}: has no {FILE}, so its tokens are unknown")
    tokenizer = load_tokenizer(model / FILE)
    number = _number(token) if by_id else token_of(tokenizer, token)
    args = [str(model), str(number), f"--count={count}", f"--but={_listed(tokenizer)}"]
    with LocalProcess("search for near tokens", NEAREST_TOKENS, args, logs / "near.log") as process:
        done = process.result()
    near = [{"text": tokenizer.decode([n], special=True), "id": n, "cosine": c} for n, c in done["near"]]
    return {"token": {"text": tokenizer.decode([number], special=True), "id": number}, "near": near}


def token_of(tokenizer: Tokenizer, text: str) -> int:
    """Return the token of a text: with a leading space if that is one token, else without."""
    pieces: list[int] = []
    for spelling in (f" {text}", text):
        pieces = tokenizer.encode(spelling)
        if len(pieces) == 1:
            return pieces[0]
    known = tokenizer.id_of(text)
    if known is not None:
        return known
    if not pieces:
        raise BadInput(f"'{text}' is not a token of this model")
    listed = ", ".join(repr(tokenizer.decode([piece])) for piece in pieces)
    raise BadInput(f"'{text}' is {len(pieces)} tokens of this model, not one", hint=f"they are {listed}")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"'{text}' is not the number of a token")
    return int(text)


def _listed(tokenizer: Tokenizer) -> str:
    """List the ids of special tokens, which are left out of the search."""
    return ",".join(str(number) for number in sorted(tokenizer.special_ids))
