"""Saves and restores everything that the next step depends on.

A checkpoint is a directory with a manifest: weights, both Adam moments, and how far the run has come.
The position in the data is `samples`, one integer. The format is docs/formats/checkpoint.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from windlass.spec.errors import Damaged, StoreFailed
from windlass.store.manifest import DirectoryWriter, load_manifest, verify
from windlass.store.place import Place

WEIGHTS, MOMENTS, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
FIRST, SECOND = "first", "second"


@dataclass(frozen=True)
class State:
    """How far a run has come."""

    step: int
    samples: int
    train_s: float


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State, *, keep: int
) -> Path:
    """Write a checkpoint; it exists once its manifest does. Then forget the oldest beyond `keep`."""
    target = folder / f"step-{state.step:08d}"
    target.mkdir(parents=True, exist_ok=True)
    writer = DirectoryWriter(Place(target))
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    with _told(target):
        save_file(tensors, target / WEIGHTS)
        save_file(_moments(model, optimizer), target / MOMENTS)
    writer.adopt(WEIGHTS)
    writer.adopt(MOMENTS)
    writer.write(STATE, json.dumps(asdict(state)).encode())
    writer.commit({"kind": "checkpoint", "step": state.step})
    for old in committed(folder)[:-keep]:
        Place(old).remove()
    return target


def restore_newest(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[State | None, list[str]]:
    """Load the newest whole checkpoint; also return why newer ones were passed over."""
    passed_over: list[str] = []
    for path in reversed(committed(folder)):
        try:
            return _restore(path, model, optimizer), passed_over
        except Damaged as damage:
            passed_over.append(damage.message)
    return None, passed_over


def committed(folder: Path) -> list[Path]:
    """List the finished checkpoints, oldest first. Debris of a writer that died is not among them."""
    found = sorted(folder.glob("step-*")) if folder.exists() else []
    return [path for path in found if (path / "manifest.json").exists()]


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    place = Place(path)
    verify(place, load_manifest(place))
    weights, moments = load_file(path / WEIGHTS), load_file(path / MOMENTS)
    state = State(**json.loads((path / STATE).read_text()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
            optimizer.state[parameter] = {
                "step": torch.tensor(float(state.step)),
                "exp_avg": moments[f"{name}.{FIRST}"].to(parameter.device),
                "exp_avg_sq": moments[f"{name}.{SECOND}"].to(parameter.device),
            }
    return state


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    moments: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        kept = optimizer.state[parameter]
        moments[f"{name}.{FIRST}"] = kept["exp_avg"]
        moments[f"{name}.{SECOND}"] = kept["exp_avg_sq"]
    return moments


@contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        reason = "no space left on the device" if "os error 28" in str(error) else str(error)
        raise StoreFailed(
            f"{target}: the checkpoint could not be written: {reason}",
            hint="the checkpoint before it is whole; free some space and go on with --resume",
        ) from None
