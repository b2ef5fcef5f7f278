"""Which device and how many threads this process computes with."""

from __future__ import annotations

import torch

from windlass.spec.errors import BadInput
from windlass.spec.job import MachineSpec


def place_process(machine: MachineSpec, threads: int, rank: int = 0) -> torch.device:
    """Settle this process on its device; on a CPU, with as many threads as it was given.

    GPUs of a machine go to its ranks in turn, which the launcher numbers machine by machine.
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
    """Return the device that a machine table asks for, or say that it is not there."""
    if machine.device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "[machine] device = 'cuda', but torch sees no GPU", hint="use device = 'auto' or 'cpu'"
        )
    if machine.device == "auto" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu" if machine.device == "auto" else machine.device)
