"""Finds the hidden state of each token of a text, for `windlass tag`. Nothing here loads torch.

Input: a model directory with its tokenizer, and a text. Output: the likeliest sequence of states, and the
tokens that each state emits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from windlass.corpus.tokenizer import Tokenizer, load_tokenizer
from windlass.models.files import read_config
from windlass.models.hmm import HiddenMarkov, load
from windlass.models.hmm.viterbi import best_path
from windlass.models.recurrent_state import Ids
from windlass.spec.errors import BadInput

SETTLED = 200
"""Steps after which the chain of states is taken to be stationary."""


def tag_text(directory: Path, text: str | None, listed: int) -> dict[str, Any]:
    """Tag a text, if there is one, and list the likeliest tokens of its states, or of all."""
    family = str(read_config(directory).get("model_type"))
    if family != "windlass-hmm":
        raise BadInput(
            f"{directory} is a model of type '{family}', which has no hidden states",
            hint='train one with [model] family = "hmm"',
        )
    model, tokenizer = load(directory), load_tokenizer(directory)
    result: dict[str, Any] = {}
    wanted = np.arange(model.shape.states)
    if text is not None:
        result, states_T = _tagged(model, tokenizer, text)
        wanted = np.unique(states_T)
    if listed:
        result["states"] = _described(model, tokenizer, wanted, listed)
    return result


def _tagged(model: HiddenMarkov, tokenizer: Tokenizer, text: str) -> tuple[dict[str, Any], Ids]:
    ids = np.array(tokenizer.encode(text), np.int64)
    if not len(ids):
        raise BadInput("the text is empty, so there is nothing to tag")
    if int(ids.max()) >= model.shape.vocabulary:
        raise BadInput(f"the tokenizer has tokens beyond the {model.shape.vocabulary} that the model knows")
    states_T, logprob = best_path(model.weights.astype(np.float64), ids)
    pairs = zip(ids.tolist(), states_T.tolist(), strict=True)
    tokens = [{"id": i, "text": _text(tokenizer, i), "state": state} for i, state in pairs]
    return {"tokens": tokens, "path_logprob": logprob, "loss": _loss(model, ids)}, states_T


def _loss(model: HiddenMarkov, ids: Ids) -> float | None:
    """Return the mean loss in nats per token, without the first; None for a text of one token."""
    if len(ids) < 2:
        return None
    return float(-model.logprobs(ids[None, :-1], ids[None, 1:]).mean())


def _described(model: HiddenMarkov, tokenizer: Tokenizer, states: Ids, listed: int) -> list[dict[str, Any]]:
    """Return the stationary share of each state and its likeliest tokens."""
    share_K = model.weights.start_K.astype(np.float64)
    for _ in range(SETTLED):
        share_K = share_K @ model.weights.transition_KK
    return [
        {
            "state": state,
            "share": float(share_K[state]),
            "tokens": [
                {"id": i, "text": _text(tokenizer, i), "probability": float(chance)}
                for i, chance in _likeliest(model.weights.emission_KV[state], listed)
            ],
        }
        for state in states.tolist()
    ]


def _likeliest(chances_V: Any, listed: int) -> list[tuple[int, float]]:
    order = np.argsort(-chances_V, kind="stable")[:listed]
    return [(int(i), float(chances_V[i])) for i in order]


def _text(tokenizer: Tokenizer, number: int) -> str:
    return tokenizer.token_bytes(number).decode(errors="replace")
