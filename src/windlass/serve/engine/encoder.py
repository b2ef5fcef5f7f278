"""The engine of bidirectional models (bert), which return vectors and no text.

It implements EngineProtocol. Inputs of one request are computed together, the longest first, so that a batch
needs little padding; requests take turns.

Legend: B inputs, T time, D width.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from windlass.models.language import LanguageModel
from windlass.serve.engine import embed
from windlass.serve.engine.engine_api import Reply
from windlass.serve.engine.sequence import Owner
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import Embed, EngineRequest, Failed, Generate, Tokens
from windlass.spec.shape import Network

TOKENS_PER_STEP = 2048
Pooling = Literal["mean", "cls", "max", "last"]
"""What the states of all tokens become: their mean, the first, the largest of each feature, or the last."""
POOLING = "1_Pooling/config.json"
MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


@dataclass(eq=False)
class _Request:
    """An Embed request under way."""

    owner: Owner
    request: Embed
    vectors: dict[int, list[float]] = field(default_factory=dict)
    left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = sorted(range(len(self.request.inputs)), key=lambda i: len(self.request.inputs[i]))

    def step(self, model: LanguageModel, budget: int, pooling: Pooling) -> bool:
        """Compute inputs of about `budget` tokens, padding included; return whether all are done."""
        taken = [self.left.pop()]
        width = len(self.request.inputs[taken[0]])
        while self.left and width * (len(taken) + 1) <= budget:
            taken.append(self.left.pop())
        found = vectors_of(model, [self.request.inputs[i] for i in taken], pooling)
        self.vectors |= dict(zip(taken, found, strict=True))
        return not self.left


class EncoderEngine:
    """One model and its embedding requests. Not thread-safe."""

    blocks_used = blocks_idle = blocks_in_all = 0

    def __init__(self, model: LanguageModel, precision: str = "float32", pooling: Pooling = "mean") -> None:
        self._model, self._pooling = model.eval(), pooling
        self.precision = precision
        self.steps = self.tokens = 0
        self._waiting: deque[_Request] = deque()
        self._replies: list[Reply] = []

    @property
    def shape(self) -> Network:
        return self._model.shape

    @property
    def running_count(self) -> int:
        return 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._replies)

    def add(self, owner: Owner, message: EngineRequest) -> None:
        shape = self.shape
        match message:
            case Generate():
                why = f"a {shape.family} model sees both sides of a token and cannot continue a text"
                self._replies.append((owner, Failed(message.id, "not_generative", why)))
            case Embed():
                wrong = embed.refusal(message, shape.vocabulary, shape.context)
                if any((task.owner, task.request.id) == (owner, message.id) for task in self._waiting):
                    wrong = "duplicate_id", f"request '{message.id}' is under way already"
                if wrong is not None:
                    self._replies.append((owner, Failed(message.id, *wrong)))
                else:
                    self._waiting.append(_Request(owner, message))
            case _:
                if self._drop(owner, message.id):
                    self._replies.append((owner, Tokens(message.id, finish="cancelled")))

    def forget(self, owner: Owner) -> None:
        self._replies = [reply for reply in self._replies if reply[0] != owner]
        self._waiting = deque(task for task in self._waiting if task.owner != owner)

    def rest(self) -> None:
        """Nothing is kept between requests."""

    @torch.inference_mode()
    def step(self) -> list[Reply]:
        """Compute some inputs of the next request."""
        if self._waiting:
            task = self._waiting.popleft()
            if task.step(self._model, TOKENS_PER_STEP, self._pooling):
                vectors = [task.vectors[i] for i in range(len(task.vectors))]
                self._replies.append((task.owner, embed.answer(task.request.id, vectors)))
            else:
                self._waiting.append(task)
            self.steps += 1
        replies, self._replies = self._replies, []
        return replies

    def _drop(self, owner: Owner, id_: str) -> bool:
        kept = deque(task for task in self._waiting if (task.owner, task.request.id) != (owner, id_))
        dropped = len(kept) < len(self._waiting)
        self._waiting = kept
        return dropped


def vectors_of(model: LanguageModel, inputs: list[list[int]], pooling: Pooling = "mean") -> list[list[float]]:
    """Return one unit vector for each input."""
    device = model.output_weight.device
    lengths_B = torch.tensor([len(tokens) for tokens in inputs], device=device)
    width = int(lengths_B.max())
    tokens_BT = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in inputs], device=device)
    real_BT = torch.arange(width, device=device) < lengths_B[:, None]
    mask_BT = None if bool(real_BT.all()) else real_BT
    x_BTD = model(tokens_BT, key_mask_BT=mask_BT).float()
    vectors: list[list[float]] = F.normalize(_pooled(x_BTD, real_BT, pooling), dim=-1).tolist()
    return vectors


def pooling_in(directory: Path) -> Pooling:
    """Return how a directory of sentence-transformers pools; a directory that says nothing has the mean."""
    _check_modules(directory / "modules.json")
    path = directory / POOLING
    if not path.is_file():
        return "mean"
    fields = _json(path)
    on = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value is True]
    if len(on) != 1 or on[0] not in MODES:
        raise BadInput(
            f"{path}: pools by {', '.join(on) or 'nothing'}",
            hint=f"supported, one at a time: {', '.join(MODES)}",
        )
    return MODES[on[0]]


def _check_modules(path: Path) -> None:
    """Refuse a sentence encoder with parts that are not computed, such as a dense layer after pooling."""
    if not path.is_file():
        return
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in _json(path)]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise BadInput(
            f"{path}: has a part '{unknown[0]}'", hint="supported: Transformer, Pooling, Normalize"
        )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON: {error}") from None


def _pooled(x_BTD: Tensor, real_BT: Tensor, pooling: Pooling) -> Tensor:
    lengths_B = real_BT.sum(dim=1)
    match pooling:
        case "cls":
            return x_BTD[:, 0]
        case "last":
            return x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), lengths_B - 1]
        case "max":
            return x_BTD.masked_fill(~real_BT[:, :, None], -torch.inf).amax(dim=1)
        case "mean":
            return (x_BTD * real_BT[:, :, None]).sum(dim=1) / lengths_B[:, None]
