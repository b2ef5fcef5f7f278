"""The measurements of one machine, as `windlass probe` writes them (docs/formats/profile.md).

Everything is kept as measured, in seconds and bytes; `step` and `memory` predict runs from it. A profile
is valid only for the machine and the software that it was measured on.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from windlass.plan.local.machine import usable_cores
from windlass.spec.config_model import ConfigModel
from windlass.spec.errors import BadInput
from windlass.store.store_dir import StoreDir

PROFILE = "profile.json"
FRESH_S = 30 * 86400.0
"""After a month a machine may have other memory, another kernel or other neighbours."""
AGAIN = "measure it again: windlass probe"

Division = Literal["plain", "sharded", "tp"]
"""How processes divide a block: each has its own, each holds a part of its weights, each computes a part."""


class Product(ConfigModel):
    """A matrix product of `tokens` rows with a weight of `outputs` x `inputs`, in a pass and back."""

    tokens: int
    inputs: int
    outputs: int
    forward_s: float
    inputs_s: float
    """For the gradient of the inputs."""
    weights_s: float
    """For the gradient of the weight."""


class AttentionTime(ConfigModel):
    """Causal attention of `heads` heads of all sequences together, forward and backward."""

    heads: int
    length: int
    head_width: int
    seconds: float


class StreamTime(ConfigModel):
    """Adding one vector to another, which moves three values for each of theirs."""

    values: int
    seconds: float


SHALLOW, DEEP = 1, 3
"""Layers of the two models whose difference gives the time of a layer."""
MIN_SHARE = 0.05
"""Minimum share of a pass of each of its two parts: noise may hide one, but neither is zero."""


class BlockTime(ConfigModel):
    """Seconds of the trainer for a micro-batch of a model of one layer, and of three."""

    division: Division
    width: int
    heads: int
    ffn_width: int
    vocabulary: int
    context: int
    sequences: int
    shallow_s: float
    deep_s: float

    @property
    def layer_s(self) -> float:
        return max(MIN_SHARE * self.deep_s, self.deep_s - self.shallow_s) / (DEEP - SHALLOW)

    @property
    def ends_s(self) -> float:
        """All but the layers: embedding, last norm and loss."""
        return max(MIN_SHARE * self.shallow_s, self.shallow_s - SHALLOW * self.layer_s)


class UpdateTime(ConfigModel):
    """Clipping the gradients and the AdamW update, for a number of weights."""

    weights: int
    seconds: float


class CollectiveTime(ConfigModel):
    """A collective over all processes. Bytes are those of the whole tensor: the result of an
    all-reduce or all-gather, the input of a reduce-scatter."""

    kind: Literal["sum", "gather", "scatter", "pass"]
    bytes: int
    seconds: float


class ProbeSetting(ConfigModel):
    """Measurements with several processes at a time, each on cores of its own."""

    processes: int
    threads: int
    products: tuple[Product, ...]
    attentions: tuple[AttentionTime, ...]
    streams: tuple[StreamTime, ...]
    blocks: tuple[BlockTime, ...]
    updates: tuple[UpdateTime, ...]
    exchanges: tuple[CollectiveTime, ...] = ()
    handing_s: float = 0.0
    """What a pipeline costs for each micro-batch and stage when there is next to nothing to compute."""


class ResidentMemory(ConfigModel):
    """The peak of resident memory of a fresh training process with a model of known size."""

    processes: int
    width: int
    layers: int
    heads: int
    ffn_width: int
    vocabulary: int
    context: int
    sequences: int
    peak_bytes: int


class Profile(ConfigModel):
    """One machine."""

    format: Literal["windlass-profile-1"] = "windlass-profile-1"
    made_at: float
    """Seconds since 1970."""
    machine: str
    cores: int
    software: dict[str, str]
    peak_flops: float
    """Of numpy on all cores: measured again to see how busy the machine is (`machine`)."""
    settings: tuple[ProbeSetting, ...]
    held: tuple[ResidentMemory, ...]
    start_s: float
    """Until a process has imported torch and the trainer."""
    write_bytes_s: float
    read_bytes_s: float
    fsync_s: float


def quickest_quarter(seconds: Sequence[float]) -> float:
    """Return the mean of the quickest quarter of some tries, of at least one.

    Noise only ever slows work down, but the very quickest try is luck.
    """
    best = sorted(seconds)[: max(1, len(seconds) // 4)]
    return sum(best) / len(best)


def load_profile(path: Path) -> Profile:
    """Read a profile; raise BadInput if it is not valid."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no profile", hint=AGAIN) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path}: {where}: {first['msg']}", hint=AGAIN) from None


def save_profile(profile: Profile, home: Path) -> Path:
    StoreDir(home).write(PROFILE, profile.model_dump_json(indent=1).encode())
    return home / PROFILE


def find_profile(home: Path) -> Profile | None:
    """Return the profile of this machine if there is one that is still valid."""
    if not (home / PROFILE).exists():
        return None
    found = load_profile(home / PROFILE)
    return found if why_stale(found, now=time.time()) is None else None


def why_stale(profile: Profile, *, now: float) -> str | None:
    """Return why a profile is not valid here and now; None if it is."""
    if (profile.machine, profile.cores) != (this_machine(), usable_cores()):
        return f"it is of another machine: {profile.machine}, {profile.cores} cores"
    if profile.software != this_software():
        return f"it was made with {', '.join(f'{k} {v}' for k, v in profile.software.items())}"
    if not 0 <= now - profile.made_at <= FRESH_S:
        return f"it is {(now - profile.made_at) / 86400:.0f} days old"
    return None


def this_machine() -> str:
    """The processor's name, as the system reports it."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def this_software() -> dict[str, str]:
    """Versions of the software that determines the speed, without importing it."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = "none"
    return {"python": platform.python_version(), "torch": torch}
