"""State in memory, twice: no single loss takes it away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.checkpoint.peer_memory import replica_peers

nodes = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(nodes)
def test_every_member_keeps_one_copy_and_none_its_own(named: list[str]) -> None:
    to = replica_peers(named)
    assert sorted(to) == list(range(len(named)))
    if len(named) > 1:
        assert all(rank != buddy for rank, buddy in enumerate(to))


@given(nodes)
def test_no_copy_stays_on_its_machine_where_that_can_be(named: list[str]) -> None:
    fullest = max(named.count(node) for node in named)
    if 2 * fullest <= len(named):
        assert all(named[rank] != named[buddy] for rank, buddy in enumerate(replica_peers(named)))


RANK = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
from windlass.parallel.process_group import DistributedGroup
from windlass.parallel.param_shard import ParamShard, whole
from windlass.train.checkpoint.async_save import State
from windlass.train.checkpoint.shard import claims_of, take_part
from windlass.train.checkpoint.peer_memory import MemoryTier

meet, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
SHAPES = {"wide": (7, 40), "tall.weight": (31, 5), "scale": ()}

def values(name):
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name)))

def typed(name, tensor):
    return tensor.to(torch.bfloat16) if name == "wide" else tensor

def holding(name):
    box = whole(SHAPES[name]).divided(0, world, rank) if SHAPES[name] else whole(())
    data = values(name)[box.within(whole(SHAPES[name]))].clone()
    return ParamShard(name, SHAPES[name], box, nn.Parameter(typed(name, data)), 1)

held = [holding(name) for name in SHAPES]
optimizer = torch.optim.AdamW([h.tensor for h in held], lr=0.0, weight_decay=0.0)
for h in held:
    h.tensor.grad = torch.ones_like(h.tensor)
tier, group = MemoryTier(DistributedGroup(), nodes=["one", "two", "one", "two"][:world]), DistributedGroup()
for step in (1, 2, 3):
    optimizer.step()
    part = take_part(held, optimizer, {}, keys=claims_of(held, None), replica=None)
    tier.keep(part, State(step, step, 1.0))
shares = group.all_gather_json([[k.rank for k in tier.kept()], tier.steps])
covered, right = {}, True
for name, kind, box, tensor in tier.pieces():
    covered[f"{name}.{kind}"] = covered.get(f"{name}.{kind}", 0) + tensor.numel()
    if kind is None:
        wanted = values(name)[box.within(whole(SHAPES[name]))]
        right &= torch.equal(tensor, typed(name, wanted))
first = next(t for n, k, b, t in tier.pieces(2) if k == "first").flatten()[0].item() if world > 1 else 0
tier.forget(2)
dist.destroy_process_group()
print(json.dumps({"shares": shares, "covered": covered, "right": right, "steps": tier.steps, "first": first}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 4])
def test_a_lost_rank_is_found_with_its_buddy(tmp_path: Path, world: int) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path / "meet"), str(rank), str(world)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(world)
    ]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert all(t["right"] for t in told)
    assert all(t["steps"] == [2] for t in told)
    for shares in (t["shares"] for t in told):
        assert [steps for _, steps in shares] == [[2, 3]] * world
    if world > 1:
        holders = [rank for kept, _ in told[0]["shares"] for rank in kept]
        assert sorted(holders) == sorted([*range(world)] * 2)
        # Two of four machines' ranks are lost: the others have all of it.
        kept = [set(told[0]["shares"][rank][0]) for rank in (0, 2)]
        assert set().union(*kept) == {0, 1, 2, 3}
        assert told[0]["first"] == pytest.approx(0.19, rel=1e-2)
