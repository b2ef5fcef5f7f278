"""Defaults of training software, from its documentation: inputs of a step that no layout names.

`tables/software.toml` holds them beside the factors of `fitted_constants`. Several programs share a default,
so its effect is fitted to all of them: a generation whose rows were left out keeps its defaults.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windlass.plan.cost.step_config import Attention

SOFTWARE = Path(__file__).parents[1] / "tables" / "software.toml"


@dataclass(frozen=True)
class SoftwareDefaults:
    """Defaults are those of software that the table does not name."""

    attention: Attention = "flash"
    eager: bool = False
    """Whether every small operation is a kernel of its own that the interpreter launches."""
    overlaps_tensor: bool = False
    """Whether products are cut, so that the exchanges of tensor parallelism pass behind them."""
    divides_sends: bool = False
    """Whether devices of a tensor-parallel group each send a part of what a pipeline passes on, although all
    of them hold all of it (arXiv:2104.04473, section 4.1)."""
    overlaps_sends: bool = False
    """Whether an interleaved pipeline sends while it computes on (Megatron's overlap_p2p_comm)."""
    gathers_layers: bool = False
    """Whether layers are gathered and their gradients scattered one by one behind the computation, although
    weights stay gathered from the forward to the backward pass (FSDP's SHARD_GRAD_OP, arXiv:2304.11277)."""


def habits_of(software: str) -> SoftwareDefaults:
    return _table().get(software) or SoftwareDefaults()


@cache
def _table() -> dict[str, SoftwareDefaults]:
    table = tomllib.loads(SOFTWARE.read_text())
    return {name: SoftwareDefaults(**entry.get("habits", {})) for name, entry in table.items()}
