"""Checkpoints by real processes that talk through torch.distributed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from windlass.train.checkpoint.async_save import committed
from windlass.train.checkpoint.reader import CheckpointReader

pytestmark = pytest.mark.slow

RANK = """
import json, resource, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from windlass.parallel.process_group import DistributedGroup
from windlass.parallel.param_shard import ParamShard, whole
from windlass.spec.errors import StoreFailed
from windlass.spec.layout import Partition, Layout
from windlass.train.checkpoint.async_save import AsyncSave, State, restore_newest

order, folder, meet = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
rank, world = int(sys.argv[4]), int(sys.argv[5])
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
group = DistributedGroup()
SHAPES = {"in": (300, 40), "out": (40, 300), "norm": (300,)}

def values(name, seed):
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed + len(name)))

def holding(name, dimension):
    box = whole(SHAPES[name]).divided(min(dimension, len(SHAPES[name]) - 1), world, rank)
    parameter = nn.Parameter(values(name, 1)[box.within(whole(SHAPES[name]))].clone())
    return ParamShard(name, SHAPES[name], box, parameter, copies=1)

def trained(dimension):
    held = [holding(name, dimension) for name in SHAPES]
    optimizer = torch.optim.AdamW([h.tensor for h in held], lr=0.1, fused=True)
    for h in held:
        h.tensor.grad = values(h.name, 9)[h.box.within(whole(h.shape))].clone()
    optimizer.step()
    return held, optimizer

def save(step, dimension=0):
    held, optimizer = trained(dimension)
    saving = AsyncSave(folder, State(step, step, 1.0), keep=3, group=group, layout=Layout(sharded=world),
                       cut=Partition(pieces=(), features={}, how="by hand"))
    saving.start(held, optimizer)
    saving.commit()

told = {}
if order == "save":
    save(1)
elif order == "fail":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:  # a quota that only this one meets
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        save(2)
    except StoreFailed as failure:
        told["failed"] = failure.message
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    save(3)
elif order == "restore":
    held, optimizer = trained(1)
    wanted = [h.tensor.detach().clone() for h in held]
    wanted += [optimizer.state[h.tensor]["exp_avg_sq"] for h in held]
    for h in held:
        h.tensor.data.zero_()
        optimizer.state[h.tensor] = {}
    state, _, skipped = restore_newest(folder, held, optimizer, group=group)
    found = [h.tensor.detach() for h in held] + [optimizer.state[h.tensor]["exp_avg_sq"] for h in held]
    told = {"step": state.step, "same": all(map(torch.equal, found, wanted)), "skipped": skipped}
told["heard"] = group.all_gather_json({"rank": rank, "text": "x" * (10 * rank)})
dist.destroy_process_group()
print(json.dumps(told))
"""


def run(order: str, folder: Path, world: int, meet: Path) -> list[dict[str, Any]]:
    """Start all ranks; return what each printed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, order, str(folder), str(meet), str(rank), str(world)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(world)
    ]
    return [json.loads(process.communicate(timeout=120)[0]) for process in started]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A checkpoint by two processes, and what they said."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, run("save", folder, 2, folder / "meet")


def test_two_processes_save_and_three_continue(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = saved
    parts = sorted(path.name for path in committed(folder)[-1].glob("part-*"))
    assert parts == ["part-00000.safetensors", "part-00001.safetensors"]
    told = run("restore", folder, 3, tmp_path / "meet")
    assert [(t["step"], t["same"], t["skipped"]) for t in told] == [(1, True, [])] * 3


def test_every_fact_reaches_all_ranks_in_their_order(saved: tuple[Any, list[dict[str, Any]]]) -> None:
    _, told = saved
    wanted = [{"rank": rank, "text": "x" * (10 * rank)} for rank in range(2)]
    assert [t["heard"] for t in told] == [wanted] * 2


def test_a_quota_of_one_process_fails_all_alike_and_they_continue(tmp_path: Path) -> None:
    told = run("fail", tmp_path / "checkpoints", 3, tmp_path / "meet")
    assert len({t["failed"] for t in told}) == 1
    assert "the checkpoint could not be written: rank 1: " in told[0]["failed"]
    (only,) = committed(tmp_path / "checkpoints")
    assert only.name == "step-00000003"
    assert torch.isfinite(CheckpointReader(only).read("in")).all()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
