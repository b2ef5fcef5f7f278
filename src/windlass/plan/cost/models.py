"""Models that plans can be made for by name: sizes are facts, from the models' own configurations."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from windlass.plan.cost.step_config import Sizes
from windlass.spec.errors import NotFound, nearest

TABLE = Path(__file__).parents[1] / "tables" / "models.toml"


@dataclass(frozen=True)
class ServedShape:
    """A model as serving sees it: its sizes, and how far back its layers look."""

    name: str
    sizes: Sizes
    window: int = 0
    windowed: float = 0.0
    """Share of the layers that see only `window` tokens; the others see all."""

    @cached_property
    def sparse_layers(self) -> int:
        return self.sizes.layers - self.sizes.dense_layers if self.sizes.experts else 0

    @cached_property
    def head_weights(self) -> int:
        """Those that turn the last layer's output into scores of tokens."""
        return self.sizes.vocabulary * self.sizes.width

    @cached_property
    def shared_weights(self) -> int:
        """Those of the layers that every token meets."""
        sizes, sparse = self.sizes, self.sparse_layers
        attention = sizes.layers * sizes.attention_weights
        dense = (sizes.layers - sparse) * sizes.ffn_weights(sizes.ffn_width)
        return attention + dense + sparse * sizes.ffn_weights(sizes.shared_width)

    def seen(self, context: float) -> float:
        """Tokens that a layer looks back on, of `context`, averaged over the layers."""
        return (1 - self.windowed) * context + self.windowed * min(self.window, context)


def models() -> dict[str, ServedShape]:
    """Return every model by its own name."""
    return {name: _served(name, entry) for name, entry in _table().items()}


def model_named(name: str) -> ServedShape:
    """Return the model of this name or alias, whatever the case of its letters."""
    known = {alias.lower(): own for own, entry in _table().items() for alias in (own, *entry["aliases"])}
    own = known.get(name.lower())
    if own is not None:
        return _served(own, _table()[own])
    close = nearest(name, [*known])
    hint = f"did you mean '{known[close]}'?" if close else "known: " + ", ".join(_table())
    raise NotFound(f"the sizes of model '{name}' are not known", hint=hint)


def model_of(text: str) -> ServedShape:
    """Read a model by name, or as sizes: "layers=32,width=4096,heads=32,kv_heads=8,ffn_width=14336"."""
    if "=" not in text:
        return model_named(text)
    pairs = dict(part.partition("=")[::2] for part in re.split(r"[,\s]+", text.strip()))
    wrong = next((k for k, v in pairs.items() if k not in _SIZES or not v.isdigit() or int(v) < 1), None)
    missing = [key for key in ("layers", "width", "heads") if key not in pairs]
    if wrong is not None or missing:
        what = (
            f"'{wrong}={pairs[wrong]}' is not a size" if wrong is not None else f"'{missing[0]}' is missing"
        )
        raise NotFound(f"--model {text}: {what}", hint="sizes are " + ", ".join(_SIZES))
    return _served(text, {key: int(value) for key, value in pairs.items()})


_SIZES = (
    "layers", "width", "heads", "kv_heads", "head_width", "ffn_width", "vocabulary",
    "experts", "top_k", "expert_width", "shared_width", "dense_layers",
)  # fmt: skip


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(TABLE.read_text())


def _served(name: str, entry: dict[str, Any]) -> ServedShape:
    """Fill in what follows from the rest: heads that divide the width, keys for every head, 8/3 inside."""
    width, heads = entry["width"], entry["heads"]
    latent = entry.get("latent")
    sizes = Sizes(
        layers=entry["layers"],
        width=width,
        heads=heads,
        kv_heads=entry.get("kv_heads", heads),
        head_width=entry.get("head_width", width // heads),
        ffn_width=entry.get("ffn_width", 8 * width // 3),
        gated=entry.get("gated", True),
        vocabulary=entry.get("vocabulary", 128256),
        tied=entry.get("tied", False),
        experts=entry.get("experts", 0),
        top_k=entry.get("top_k", 0),
        expert_width=entry.get("expert_width", 0),
        shared_width=entry.get("shared_width", 0),
        dense_layers=entry.get("dense_layers", 0),
        latent=(latent[0], latent[1]) if latent else None,
    )
    return ServedShape(name, sizes, entry.get("window", 0), entry.get("windowed", 0.0))
