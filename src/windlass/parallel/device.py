"""Selects the device and the number of threads of this process."""

from __future__ import annotations

import torch

from windlass.spec.errors import BadInput
from windlass.spec.job import MachineSpec


def place_process(machine: MachineSpec, threads: int, rank: int = 0) -> torch.device:
    """Select the device of this process and set its number of CPU threads.

    The ranks of a machine take its GPUs in turn; the launcher numbers ranks machine by machine.
    """
    torch.set_num_threads(threads)
    # Subnormal numbers cost a hundred times a normal multiplication and carry nothing here.
    torch.set_flush_denormal(True)
    device = device_of(machine)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def device_of(machine: MachineSpec) -> torch.device:
    """Return the device that the [machine] table names; raise BadInput if it does not exist."""
    if machine.device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "[machine] device = 'cuda', but torch sees no GPU", hint="use device = 'auto' or 'cpu'"
        )
    if machine.device == "auto" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu" if machine.device == "auto" else machine.device)
