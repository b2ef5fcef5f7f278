"""What one server holds, and what is left of it after a death."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from windlass.models.build import build
from windlass.parallel.param_shard import ParamShard, holdings_of, whole
from windlass.spec.errors import BadInput
from windlass.spec.run import Run
from windlass.train.checkpoint.async_save import State
from windlass.train.optimize import build_optimizer, set_rate
from windlass.train.server.network.network_shard import NetworkShardState
from windlass.train.server.peers import StarGroup
from windlass.train.server.shard import ServerShard
from windlass.train.server.shard_state import ROWS
from windlass.train.server.stages import drop_event, open_shard
from windlass.train.server.updates import ServerUpdate

MakeRun = Callable[..., Run]
UPDATE = ServerUpdate(
    number=1,
    batch=0,
    tasks=("a",),
    first=0,
    until=4,
    rate=1e-2,
    shrink=None,
    norm=1.0,
    loss=1.0,
    digest=0,
    stale=0,
    train_s=0.0,
)


def served(make_run: MakeRun, **sync: Any) -> Run:
    return make_run(sync={"policy": "server", **sync})


def holdings(shard: ServerShard) -> list[ParamShard]:
    assert isinstance(shard.part, NetworkShardState)
    return shard.part.holdings


def gradient(shard: ServerShard, seed: int) -> dict[str, Tensor]:
    """Return a gradient of the whole model, cut to the boxes of a server."""
    found = {}
    for holding in holdings(shard):
        generator = torch.Generator().manual_seed(seed * 1000 + sum(map(ord, holding.name)))
        values = torch.randn(holding.shape, generator=generator)
        found[holding.name] = values[holding.box.within(whole(holding.shape))].clone()
    return found


def weights(shard: ServerShard) -> dict[str, Tensor]:
    return shard.pull({})[1]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_servers_together_do_what_one_optimizer_does(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, servers=3)
    shards = [open_shard("network", run, tmp_path, number, drop_event) for number in range(3)]
    model = build(run.network, seed=run.job.seed)
    held = holdings_of(model)
    optimizer = build_optimizer(held, run)
    for number in range(1, 4):
        for shard in shards:
            shard.restore() if number == 1 else None
            shard.stage(f"t{number}", gradient(shard, number))
            shard.commit(replace(UPDATE, number=number, tasks=(f"t{number}",)))
        set_rate(optimizer, UPDATE.rate)
        for holding in held:
            generator = torch.Generator().manual_seed(number * 1000 + sum(map(ord, holding.name)))
            holding.tensor.grad = torch.randn(holding.shape, generator=generator)
        optimizer.step()
    for shard in shards:
        for holding in holdings(shard):
            expected = model.get_parameter(holding.name)[holding.box.within(whole(holding.shape))]
            assert torch.equal(holding.tensor, expected), holding.name


def test_a_death_loses_nothing_that_was_staged_or_committed(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    shard = open_shard("network", run, tmp_path, 0, drop_event)
    shard.restore()
    shard.stage("a", gradient(shard, 1))
    shard.commit(UPDATE)
    shard.save(State(1, 4, 0.0), StarGroup([]))
    shard.stage("b", gradient(shard, 2))
    shard.commit(replace(UPDATE, number=2, batch=1, tasks=("b",)))
    shard.stage("c", gradient(shard, 3))
    again = open_shard("network", run, tmp_path, 0, drop_event)
    updates, _ = again.restore()
    assert [update.number for update in updates] == [2]
    assert (again.version, again.staged()) == (2, ["c"])
    assert same(weights(again), weights(shard))
    for one in (shard, again):
        one.commit(replace(UPDATE, number=3, batch=2, tasks=("c",)))
    assert same(weights(again), weights(shard)), "its moments are the same, too"


def test_without_a_log_a_server_comes_back_at_its_checkpoint(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, log=False)
    shard = open_shard("network", run, tmp_path, 0, drop_event)
    shard.restore()
    shard.stage("a", gradient(shard, 1))
    shard.commit(UPDATE)
    again = open_shard("network", run, tmp_path, 0, drop_event)
    again.restore()
    assert (again.version, again.staged()) == (0, [])


def test_a_commit_that_is_said_twice_is_made_once(make_run: MakeRun, tmp_path: Path) -> None:
    shard = open_shard("network", served(make_run), tmp_path, 0, drop_event)
    shard.restore()
    shard.stage("a", gradient(shard, 1))
    shard.commit(UPDATE)
    before = weights(shard)
    shard.commit(UPDATE)
    assert shard.version == 1
    assert same(weights(shard), before)


def test_rows_that_were_touched_say_the_same_as_the_whole_gradient(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    ids = torch.tensor([1, 4, 9])
    found = []
    for sparse in (False, True):
        shard = open_shard("network", run, tmp_path / str(sparse), 0, drop_event)
        shard.restore()
        whole_gradient = gradient(shard, 1)
        rows = whole_gradient["embedding.weight"][ids]
        whole_gradient["embedding.weight"] = torch.zeros_like(whole_gradient["embedding.weight"])
        whole_gradient["embedding.weight"][ids] = rows
        if sparse:
            whole_gradient |= {"embedding.weight": rows, "embedding.weight" + ROWS: ids}
        shard.stage("a", whole_gradient)
        norm = shard.square(["a"])
        shard.commit(UPDATE)
        found.append((norm, weights(shard)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


def test_rows_can_be_pulled_alone(make_run: MakeRun, tmp_path: Path) -> None:
    shard = open_shard("network", served(make_run, servers=2), tmp_path, 0, drop_event)
    ids = torch.arange(0, holdings(shard)[0].shape[0], 3)
    arrays = shard.pull({"embedding.weight" + ROWS: ids})[1]
    held = arrays["embedding.weight" + ROWS]
    assert 0 < len(held) <= len(ids)
    assert torch.equal(arrays["embedding.weight"], holdings(shard)[0].tensor[held])


def test_gradients_of_several_are_added_up_in_order_and_shrunk(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run)
    shard = open_shard("network", run, tmp_path, 0, drop_event)
    parts = {task: gradient(shard, seed) for seed, task in enumerate("abc")}
    for task, part in parts.items():
        shard.stage(task, part)
    summed = {name: parts["a"][name] + parts["b"][name] + parts["c"][name] for name in parts["a"]}
    square = sum(float(t.square().sum()) for t in summed.values())
    assert shard.square(["a", "b", "c"]) == pytest.approx(square, rel=1e-5)


def test_what_is_no_gradient_of_these_weights_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    shard = open_shard("network", served(make_run), tmp_path, 0, drop_event)
    wrong = gradient(shard, 1)
    wrong["norm.weight"] = torch.zeros(3)
    with pytest.raises(BadInput, match=r"gradient of 'norm.weight' is \[3\] here, not \[32\]"):
        shard.stage("a", wrong)
    assert shard.staged() == []


def test_more_servers_than_rows_are_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = served(make_run, servers=2)
    too_many = run.job.sync.model_copy(update={"servers": 200_000})
    run = run.model_copy(update={"job": run.job.model_copy(update={"sync": too_many})})
    with pytest.raises(BadInput, match="not enough weights"):
        open_shard("network", run, tmp_path, 0, drop_event)


def test_parts_of_a_batch_weigh_in_the_moments_as_much_as_the_whole(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(sync={"policy": "server"}, train={"batch_sequences": 6})
    moments = {}
    for parts in (1, 3):
        shard = open_shard("network", run, tmp_path / str(parts), 0, drop_event)
        shard.restore()
        size = 6 // parts
        for number in range(2 * parts):
            shard.stage("a", gradient(shard, 1))
            place = {"first": number * size, "until": (number + 1) * size}
            more = {"before": number * size}
            shard.commit(
                replace(UPDATE, number=number + 1, part=number % parts, parts=parts, more=more, **place)
            )
        assert isinstance(shard.part, NetworkShardState)
        state = next(iter(shard.part._optimizer.state.values()))
        moments[parts] = state["exp_avg"], state["exp_avg_sq"], float(state["step"]) / parts
    for whole_batches, in_parts in zip(moments[1], moments[3], strict=True):
        torch.testing.assert_close(torch.as_tensor(whole_batches), torch.as_tensor(in_parts))
