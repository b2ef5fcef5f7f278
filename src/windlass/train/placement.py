"""Assigns the pieces of the model to the processes of a run.

Input: a run and its group. Output: the cut and the device mesh with this process's coordinates. A run that
resumes under the layout of its newest checkpoint keeps that checkpoint's cut, which may have been rebalanced.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict
from pathlib import Path

import psutil
import torch

from windlass.parallel.device_mesh import Mesh
from windlass.parallel.layer_profile import measured_costs
from windlass.parallel.memory import state_bytes
from windlass.parallel.partition import LayerCosts, cut_model
from windlass.parallel.process_group import DistributedGroup, ProcessGroup, SingleProcess
from windlass.parallel.schedule import place
from windlass.spec.layout import Partition, check_layout
from windlass.spec.run import CHECKPOINTS, Run
from windlass.train.checkpoint.async_save import LAYOUT, committed
from windlass.train.machine_flops import peak_flops

MEASURE_S = 0.1


def settle_run(run: Run, folder: Path, device: torch.device) -> tuple[Mesh, Partition]:
    """Cut the model and build the mesh."""
    layout = run.layout
    check_layout(layout, run.network, run.batch_sequences)
    group: ProcessGroup = SingleProcess() if layout.world == 1 else DistributedGroup()
    cut = saved_cut(run, folder, group)
    if layout.pp == 1:
        return Mesh(layout, device, group), cut or cut_model(run.network, layout)
    costs = _costs(run, device, group)
    rough = cut or cut_model(run.network, layout, costs=costs)
    ranks, speeds = _placed(run, rough, device, group)
    if cut is None and layout.placement == "load-aware":
        cut = cut_model(run.network, layout, costs=costs, speeds=speeds)
    return Mesh(layout, device, group, ranks), cut or rough


def _costs(run: Run, device: torch.device, group: ProcessGroup) -> LayerCosts | None:
    """Return the layer costs measured by rank 0 if [layout] cut = "measured"; all ranks must cut alike."""
    if run.layout.cut != "measured":
        return None
    own = measured_costs(run.network, run.micro_batch_sequences, device) if group.rank == 0 else None
    return LayerCosts(**group.all_gather_json(asdict(own) if own else None)[0])


def _placed(
    run: Run, cut: Partition, device: torch.device, group: ProcessGroup
) -> tuple[list[int], list[float]]:
    """Return the rank at each point of the mesh, and the speeds along the pipeline."""
    layout = run.layout
    speed = peak_flops(device, min_s=MEASURE_S) if layout.placement == "load-aware" else 1.0
    free = psutil.virtual_memory().available
    known = group.all_gather_json({"host": socket.gethostname(), "speed": speed, "free": free})
    ranks = place(
        layout,
        seed=run.job.seed,
        hosts=[fact["host"] for fact in known],
        speeds=[fact["speed"] for fact in known],
        memories=[fact["free"] for fact in known],
        cut=cut,
        needs=state_bytes(cut, run.network, layout),
    )
    each = layout.world // layout.pp
    blocks = [ranks[start : start + each] for start in range(0, layout.world, each)]
    return ranks, [min(known[rank]["speed"] for rank in block) for block in blocks]


def saved_cut(run: Run, folder: Path, group: ProcessGroup) -> Partition | None:
    """Return the cut of the newest checkpoint if it was saved under this run's layout."""
    found = None
    if group.rank == 0:
        for path in reversed(committed(folder / CHECKPOINTS)):
            saved = json.loads((path / LAYOUT).read_bytes())
            if saved["layout"] == run.layout.model_dump(mode="json"):
                found = saved["cut"]
            break
    shared_cut = group.all_gather_json(found)[0]
    return None if shared_cut is None else Partition.model_validate(shared_cut)
