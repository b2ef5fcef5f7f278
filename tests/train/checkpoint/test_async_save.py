"""Checkpoints by several processes: the same bits under any layout, and all or nothing, for all alike."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import IO, Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

from windlass.parallel.param_shard import ParamShard, Slice, holdings_of, whole
from windlass.parallel.process_group import ProcessGroup, SingleProcess
from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.layout import Layout, Partition
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import (
    AsyncSave,
    SaveOptions,
    State,
    committed,
    restore_newest,
)
from windlass.train.checkpoint.reader import CheckpointReader, without
from windlass.train.checkpoint.shard import Buffers, claims_of, divide, take_part

pytestmark = pytest.mark.slow

T = TypeVar("T")
Boxes = Sequence[Sequence[tuple[str, Slice]]]
"""For each rank, what it holds."""

SHAPES = {"embedding.weight": (6, 4), "norm.weight": (5,), "scale": ()}
CUT = Partition(pieces=(), features={}, how="by hand")


class Threads:
    """A group of threads of this process."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._facts: list[Any] = [None] * world
        self._barrier = threading.Barrier(world, timeout=60)
        self._local = threading.local()

    @property
    def rank(self) -> int:
        return int(self._local.rank)

    def all_gather_json(self, fact: Any) -> list[Any]:
        self._facts[self.rank] = json.dumps(fact)
        self._barrier.wait()
        heard = [json.loads(said) for said in self._facts]
        self._barrier.wait()
        return heard

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Let every rank do its work; return what they return."""

        def start(rank: int) -> T:
            self._local.rank = rank
            return work(rank)

        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(start, range(self.world)))


class Worker:
    """A rank with its holdings and their optimizer."""

    def __init__(self, boxes: Sequence[tuple[str, Slice]], seed: int | None = None) -> None:
        self.holdings = []
        for name, box in boxes:
            values = whole_values(name, seed)[box.within(whole(SHAPES[name]))].clone()
            parameter = nn.Parameter(values)
            self.holdings.append(ParamShard(name, SHAPES[name], box, parameter, copies=1))
        self.optimizer = torch.optim.AdamW([h.tensor for h in self.holdings], lr=0.1, fused=True)

    def step(self) -> None:
        for holding in self.holdings:
            inside = holding.box.within(whole(holding.shape))
            holding.tensor.grad = whole_values(holding.name, 99)[inside].clone()
        self.optimizer.step()

    def save(self, folder: Path, group: ProcessGroup, step: int = 1, keep: int = 10, **more: Any) -> Path:
        state = State(step, step * 4, step * 0.5)
        layout = Layout(dp=group.world)
        saving = AsyncSave(folder, state, keep=keep, group=group, layout=layout, cut=CUT)
        saving.start(self.holdings, self.optimizer, **more)
        return saving.commit()

    def restore(self, folder: Path, group: ProcessGroup, **more: Any) -> Any:
        return restore_newest(folder, self.holdings, self.optimizer, group=group, **more)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, by name and box."""
        found: dict[str, Tensor] = {}
        for h in self.holdings:
            at = f"{h.name} {h.box.spans}"
            found[at] = h.tensor.detach()
            found |= {f"{at} {key}": value for key, value in self.optimizer.state[h.tensor].items()}
        return found


def whole_values(name: str, seed: int | None) -> Tensor:
    if seed is None:
        return torch.zeros(SHAPES[name])
    generator = torch.Generator().manual_seed(seed + len(name))
    return torch.randn(SHAPES[name], generator=generator)


def alone(seed: int | None = None) -> Worker:
    return Worker([(name, whole(shape)) for name, shape in SHAPES.items()], seed)


def parts_of(world: int, dimension: int = 0) -> Boxes:
    """Divide every weight along a dimension, as far as it has one."""
    return [
        [
            (name, whole(shape).divided(min(dimension, len(shape) - 1), world, rank) if shape else Slice(()))
            for name, shape in SHAPES.items()
        ]
        for rank in range(world)
    ]


def save_as(boxes: Boxes, folder: Path, step: int = 1, keep: int = 10) -> None:
    """Save the same weights and moments, held by as many ranks as there are lists of boxes."""
    group = Threads(len(boxes))
    workers = [Worker(own, seed=1) for own in boxes]
    for worker in workers:
        worker.step()
    group.run(lambda rank: workers[rank].save(folder, group, step, keep))


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@st.composite
def random_cuts(draw: st.DrawFn) -> Boxes:
    """Cut each weight into boxes as no layout would, and deal them to ranks; some to several of them."""
    world = draw(st.integers(1, 4))
    dealt: list[list[tuple[str, Slice]]] = [[] for _ in range(world)]
    for name, shape in SHAPES.items():
        for box in draw(cuts_of(whole(shape))):
            ranks = draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=2))
            for rank in ranks:
                dealt[rank].append((name, box))
    # A rank has a name once: keep one box of each and give the others to ranks of their own.
    return one_of_each(dealt)


def one_of_each(dealt: list[list[tuple[str, Slice]]]) -> Boxes:
    ranks: list[list[tuple[str, Slice]]] = []
    for own in dealt:
        layers: list[dict[str, Slice]] = [{}]
        for name, box in own:
            free = next((layer for layer in layers if name not in layer), None)
            if free is None:
                layers.append(free := {})
            free[name] = box
        ranks += [list(layer.items()) for layer in layers if layer]
    return ranks


@st.composite
def cuts_of(draw: st.DrawFn, box: Slice, times: int = 2) -> list[Slice]:
    """Cut a box in two at random places, and perhaps the halves again."""
    cuttable = [d for d, size in enumerate(box.shape) if size > 1]
    if times == 0 or not cuttable or draw(st.booleans()):
        return [box]
    dimension = draw(st.sampled_from(cuttable))
    start, stop = box.spans[dimension]
    at = draw(st.integers(start + 1, stop - 1))
    halves = [
        Slice((*box.spans[:dimension], span, *box.spans[dimension + 1 :]))
        for span in ((start, at), (at, stop))
    ]
    return [piece for half in halves for piece in draw(cuts_of(half, times - 1))]


@st.composite
def box_in(draw: st.DrawFn, shape: Sequence[int]) -> Slice:
    spans = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Slice(tuple((start, stop) for start, stop in spans))


@pytest.mark.parametrize("world", [1, 3])
def test_the_group_of_these_tests_implements_the_protocol(world: int) -> None:
    """As test_processes.py finds it of torch's."""
    group = Threads(world)
    facts = [{"rank": rank, "text": "x" * (10 * rank)} for rank in range(world)]
    assert (
        group.run(lambda rank: group.all_gather_json({"rank": group.rank, "text": "x" * (10 * rank)}))
        == [facts] * world
    )
    assert world > 1 or SingleProcess().all_gather_json(facts[0]) == facts


@settings(max_examples=20, deadline=None)
@given(written=random_cuts(), wanted=random_cuts())
def test_what_one_layout_saved_another_reads_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, written: Boxes, wanted: Boxes
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    save_as(written, folder)
    group = Threads(len(wanted))
    readers = [Worker(own) for own in wanted]
    expected = [Worker(own, seed=1) for own in wanted]
    told = group.run(lambda rank: readers[rank].restore(folder, group))
    assert told == [(State(1, 4, 0.5), {}, [])] * group.world
    for reader, like in zip(readers, expected, strict=True):
        like.step()
        assert same(reader.tensors(), like.tensors())


@settings(max_examples=20, deadline=None)
@given(written=random_cuts(), data=st.data())
def test_any_box_of_any_weight_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, written: Boxes, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    save_as(written, folder)
    source, like = CheckpointReader(committed(folder)[-1]), alone(seed=1)
    like.step()
    assert source.names() == sorted(SHAPES)
    for holding in like.holdings:
        assert torch.equal(source.read(holding.name), holding.tensor)
        box = data.draw(box_in(holding.shape))
        moment = like.optimizer.state[holding.tensor]["exp_avg_sq"]
        inside = box.within(holding.box)
        assert torch.equal(source.read(holding.name, box), holding.tensor[inside])
        assert torch.equal(source.read(holding.name, box, "second"), moment[inside])


@given(data=st.data())
def test_a_box_without_a_hole_is_exactly_the_rest(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    box, other = data.draw(box_in(shape)), data.draw(box_in(shape))
    hole = box.overlap(other)
    if hole is None:
        return
    count = torch.zeros(shape, dtype=torch.int64)
    outer = whole(shape)
    for piece in (*without(box, hole), hole):
        count[piece.within(outer)] += 1
    expected = torch.zeros_like(count)
    expected[box.within(outer)] = 1
    assert torch.equal(count, expected)


@given(claims=st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.just(3)), min_size=1, max_size=5))
def test_everything_is_written_once_by_a_rank_that_has_it(claims: list[dict[str, int]]) -> None:
    taken = divide(claims)
    assert sorted(key for keys in taken for key in keys) == sorted(set().union(*claims))
    assert all(keys <= own.keys() for keys, own in zip(taken, claims, strict=True))


def test_replicas_that_hold_the_same_divide_the_writing() -> None:
    own = {f"layer {n}": 10 for n in range(12)}
    assert [len(keys) for keys in divide([own, own, own])] == [4, 4, 4]


def test_copies_are_stored_once(tmp_path: Path) -> None:
    held = [(name, whole(shape)) for name, shape in SHAPES.items()]
    save_as([held, held, held], tmp_path)
    keys = [key for path in committed(tmp_path)[-1].glob("part-*") for key in stored_in(path)]
    assert sorted(keys) == sorted(f"{name}{kind}" for name in SHAPES for kind in ("", ".first", ".second"))


def stored_in(path: Path) -> list[str]:
    with safe_open(str(path), framework="pt") as file:
        return list(file.keys())


def test_before_the_first_step_there_are_no_moments(tmp_path: Path) -> None:
    alone(seed=1).save(tmp_path, SingleProcess(), step=0)
    worker, like = alone(), alone(seed=1)
    worker.step()
    state, _, _ = worker.restore(tmp_path, SingleProcess())
    assert state.step == 0
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(worker.holdings, like.holdings, strict=True))
    like.step()
    worker.step()
    assert same(worker.tensors(), like.tensors())


def save_model(model: nn.Module, folder: Path, step: int) -> None:
    saving = AsyncSave(
        folder, State(step, step, 1.0), keep=10, group=SingleProcess(), layout=Layout(), cut=CUT
    )
    saving.start(holdings_of(model), torch.optim.AdamW(model.parameters()))
    saving.commit()


def test_a_model_that_is_whole_has_whole_holdings(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save_model(model, tmp_path, step=1)
    restore_newest(tmp_path, holdings_of(other), torch.optim.AdamW(other.parameters()), group=SingleProcess())
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(model.bias, other.bias)


def test_the_layout_that_wrote_it_can_be_seen(tmp_path: Path) -> None:
    save_as(parts_of(3), tmp_path)
    told = json.loads((committed(tmp_path)[-1] / "layout.json").read_text())
    assert told["layout"]["dp"] == 3
    assert told["cut"]["how"] == "by hand"


def test_extras_come_back_as_they_were(tmp_path: Path) -> None:
    boxes = parts_of(2)
    workers, group = [Worker(own, seed=1) for own in boxes], Threads(2)
    extras = [
        {"outer": {h.name: h.tensor.detach() * 3 for h in w.holdings if h.name != "scale"}} for w in workers
    ]
    group.run(lambda rank: workers[rank].save(tmp_path, group, extra=extras[rank]))
    reader = alone()
    _, extra, _ = reader.restore(tmp_path, SingleProcess(), extra_kinds=("outer", "residual"))
    assert sorted(extra) == ["outer"]
    assert sorted(extra["outer"]) == ["embedding.weight", "norm.weight"]
    assert all(torch.equal(t, whole_values(name, 1) * 3) for name, t in extra["outer"].items())


def replicas_saved(folder: Path) -> list[Worker]:
    """Two replicas of two ranks each, whose moments and residuals differ."""
    boxes, group = parts_of(2), Threads(4)
    workers = [Worker(boxes[rank % 2], seed=1) for rank in range(4)]
    for rank, worker in enumerate(workers):
        for holding in worker.holdings:
            moment = torch.full_like(holding.tensor, float(rank // 2 + 1))
            worker.optimizer.state[holding.tensor] = {
                "step": torch.tensor(1.0), "exp_avg": moment, "exp_avg_sq": moment * 10
            }  # fmt: skip

    def save(rank: int) -> None:
        residual = {h.name: torch.full_like(h.tensor, 7.0 + rank // 2) for h in workers[rank].holdings}
        workers[rank].save(folder, group, extra={"residual": residual}, replica=rank // 2)

    group.run(save)
    return workers


@pytest.mark.parametrize(("replica", "whose"), [(None, 0), (0, 0), (1, 1), (2, 0), (3, 1)])
def test_a_replica_finds_its_own_again(tmp_path: Path, replica: int | None, whose: int) -> None:
    replicas_saved(tmp_path)
    worker = alone()
    _, extra, _ = worker.restore(tmp_path, SingleProcess(), extra_kinds=["residual"], replica=replica)
    for holding in worker.holdings:
        state = worker.optimizer.state[holding.tensor]
        assert state["exp_avg"].unique().tolist() == [whose + 1]
        assert state["exp_avg_sq"].unique().tolist() == [10 * (whose + 1)]
        assert extra["residual"][holding.name].unique().tolist() == [7 + whose]
        assert torch.equal(holding.tensor, whole_values(holding.name, 1))


def test_weights_of_replicas_are_stored_once_and_are_those_of_the_first(tmp_path: Path) -> None:
    replicas_saved(tmp_path)
    path = committed(tmp_path)[-1]
    weights = [[key for key in stored_in(p) if key in SHAPES] for p in sorted(path.glob("part-*"))]
    assert sum(len(keys) for keys in weights) == 2 + 2 + 1  # the scalar is not divided
    assert weights[2:] == [[], []]


def test_the_oldest_are_forgotten_with_their_debris(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir(parents=True)
    (tmp_path / "step-00000001" / "part-00000.safetensors").write_bytes(b"half of it")
    for step in (2, 3, 4):
        save_as(parts_of(2), tmp_path, step, keep=2)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000003", "step-00000004"]


def test_what_only_looks_like_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    for name in ("step-notes", "step-00000001.old", "notes"):
        DirectoryWriter(StoreDir(tmp_path / name)).commit()
    save_as(parts_of(2), tmp_path, 1, keep=1)
    save_as(parts_of(2), tmp_path, 2, keep=1)
    assert [path.name for path in committed(tmp_path)] == ["step-00000002"]
    assert {path.name for path in tmp_path.iterdir()} >= {"step-notes", "step-00000001.old", "notes"}


def test_a_run_that_was_set_back_keeps_what_it_writes(tmp_path: Path) -> None:
    for step in (10, 20, 12):
        save_as(parts_of(2), tmp_path, step, keep=2)
    assert [path.name[-2:] for path in committed(tmp_path)] == ["10", "12", "20"]


def test_a_checkpoint_written_again_has_only_the_parts_of_its_last_writers(tmp_path: Path) -> None:
    save_as(parts_of(4), tmp_path)
    save_as(parts_of(2), tmp_path)
    names = sorted(path.name for path in committed(tmp_path)[-1].iterdir())
    assert names == [
        "layout.json",
        "manifest.json",
        *(f"part-0000{n}.safetensors" for n in (0, 1)),
        "state.json",
    ]


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_damage_to_any_part_is_found_by_all(tmp_path: Path, part: int, world: int, harm: str) -> None:
    save_as(parts_of(3), tmp_path, 1)
    save_as(parts_of(3), tmp_path, 2)
    path = committed(tmp_path)[-1] / f"part-0000{part}.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(data if harm == "flip" else data[:-7])
    group = Threads(world)
    workers = [Worker(own) for own in parts_of(world)]
    told = group.run(lambda rank: workers[rank].restore(tmp_path, group))
    for state, _, skipped in told:
        assert state.step == 1
        assert len(skipped) == 1
        assert path.name in skipped[0]


def test_a_checkpoint_of_another_model_is_passed_over(tmp_path: Path) -> None:
    worker = alone(seed=1)
    worker.holdings = worker.holdings[:1]
    worker.save(tmp_path, SingleProcess(), 1)
    state, _, skipped = alone().restore(tmp_path, SingleProcess())
    assert state is None
    assert "no part holds 'norm.weight'" in skipped[0]


def test_a_weight_of_another_size_is_named_with_both(tmp_path: Path) -> None:
    worker = alone(seed=1)
    worker.save(tmp_path, SingleProcess(), 1)
    first = worker.holdings[0]
    worker.holdings[0] = replace(first, shape=(9, 4))
    _, _, skipped = worker.restore(tmp_path, SingleProcess())
    assert "'embedding.weight' is [6, 4] here, not [9, 4]" in skipped[0]


def test_nothing_to_restore_leaves_the_weights_alone(tmp_path: Path) -> None:
    worker = alone(seed=1)
    assert worker.restore(tmp_path / "absent", SingleProcess()) == (None, {}, [])
    assert torch.equal(worker.holdings[0].tensor, whole_values("embedding.weight", 1))


@pytest.mark.parametrize("failing", ["part-00000", "part-00002", "state.json", "manifest.json"])
def test_a_disk_that_is_full_for_one_fails_all_alike_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    group, boxes = Threads(3), parts_of(3)
    workers = [Worker(own, seed=1) for own in boxes]
    group.run(lambda rank: workers[rank].save(tmp_path, group, 1))
    with monkeypatch.context() as patch:
        fill_disk_at(failing, patch)
        told = group.run(lambda rank: failure_of(lambda: workers[rank].save(tmp_path, group, 2)))
    assert len(set(told)) == 1
    assert "no space left on the device" in told[0]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000001"]
    group.run(lambda rank: workers[rank].save(tmp_path, group, 2))
    verify(StoreDir(committed(tmp_path)[-1]))


def fill_disk_at(name: str, patch: pytest.MonkeyPatch) -> None:
    """Let the disk be full from the second write into a file on: the kernel's own error."""
    writing = StoreDir.writing

    @contextmanager
    def full(self: StoreDir, target: str) -> Iterator[IO[bytes]]:
        with writing(self, target) as file:
            if not target.startswith(name):
                yield file
                return
            with open("/dev/full", "wb", buffering=0) as full_disk:
                yield full_disk

    patch.setattr(StoreDir, "writing", full)


def failure_of(work: Callable[[], object]) -> str:
    with pytest.raises(StoreFailed) as caught:
        work()
    return caught.value.message


def test_parts_on_disks_of_their_own_are_noticed(tmp_path: Path) -> None:
    """Two machines with a folder of the same name each, which they do not share."""
    group, boxes = Threads(2), parts_of(2)
    workers = [Worker(own, seed=1) for own in boxes]
    told = group.run(lambda rank: failure_of(lambda: workers[rank].save(tmp_path / str(rank), group)))
    assert "all nodes must mount the same directory" in told[0]
    assert not committed(tmp_path / "0")


def test_a_copy_made_later_is_of_the_moment_of_the_save(tmp_path: Path) -> None:
    worker, like = alone(seed=1), alone(seed=1)
    worker.step()
    like.step()
    options = SaveOptions(buffers=Buffers())
    for step in (1, 2):  # the second time into the same memory
        saving = saving_of(worker, tmp_path, step, options=options)
        saving.start(worker.holdings, worker.optimizer, background=True, copy_later=True)
        saving.finish_copy()
        worker.step()
        path = saving.commit()
        reader = alone()
        reader.restore(tmp_path, SingleProcess())
        assert path.name == f"step-{step:08d}"
        assert all(
            torch.equal(a.tensor, b.tensor) for a, b in zip(reader.holdings, like.holdings, strict=True)
        )
        like.step()


def saving_of(worker: Worker, folder: Path, step: int, **more: Any) -> AsyncSave:
    state = State(step, step * 4, step * 0.5)
    return AsyncSave(folder, state, keep=10, group=SingleProcess(), layout=Layout(), cut=CUT, **more)


def test_a_commit_in_the_background_is_reported_when_it_is_done(tmp_path: Path) -> None:
    worker, told = alone(seed=1), Queue[Path | WindlassError]()
    saving = saving_of(worker, tmp_path, 1)
    saving.start(worker.holdings, worker.optimizer, background=True)
    path = saving.commit(told.put)
    assert told.get(timeout=60) == path
    verify(StoreDir(path))


def test_a_commit_in_the_background_that_fails_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, told = alone(seed=1), Queue[Path | WindlassError]()
    saving = saving_of(worker, tmp_path, 1)
    saving.start(worker.holdings, worker.optimizer, background=True)
    fill_disk_at("manifest.json", monkeypatch)
    saving.commit(told.put)
    failure = told.get(timeout=60)
    assert isinstance(failure, StoreFailed)
    assert "no space left" in failure.message
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_is_given_up_is_debris(tmp_path: Path) -> None:
    worker = alone(seed=1)
    saving = saving_of(worker, tmp_path, 1)
    saving.start(worker.holdings, worker.optimizer, background=True)
    saving.give_up()
    assert committed(tmp_path) == []
    worker.save(tmp_path, SingleProcess(), 2)
    assert [path.name for path in committed(tmp_path)] == ["step-00000002"]


def test_a_part_of_many_files_is_read_as_one(tmp_path: Path) -> None:
    worker = alone(seed=1)
    worker.step()
    part = take_part(
        worker.holdings, worker.optimizer, {}, keys=claims_of(worker.holdings, None), replica=None
    )
    files = part.files(3, max_bytes=100)
    assert list(files)[:2] == ["part-00003.safetensors", "part-00003-001.safetensors"]
    assert sum(file.bytes for file in files.values()) == part.bytes
    writer = DirectoryWriter(StoreDir(tmp_path))
    for name, file in files.items():
        file.write(writer, name)
    writer.commit()
    source = CheckpointReader(tmp_path)
    for name, kind, box, tensor in part.pieces():
        assert torch.equal(source.read(name, box, kind), tensor)


def test_a_file_that_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    model = nn.Linear(600, 600)
    first = model.weight.detach().clone()
    for step, change in ((1, 0.0), (2, 0.0), (3, 1.0)):
        model.weight.data += change
        save_model(model, tmp_path, step)
    one, two, three = ((path / "part-00000.safetensors").stat().st_ino for path in committed(tmp_path))
    assert one == two != three
    for path in committed(tmp_path):
        verify(StoreDir(path))
    assert torch.equal(CheckpointReader(committed(tmp_path)[0]).read("weight"), first)


def test_one_of_every_so_many_steps_stays(tmp_path: Path) -> None:
    worker = alone(seed=1)
    for step in (2, 4, 6, 8, 10, 12):
        options = SaveOptions(keep_every=5, protected=lambda: ["step-00000004"])
        saving = AsyncSave(
            tmp_path,
            State(step, step, 1.0),
            keep=1,
            group=SingleProcess(),
            layout=Layout(),
            cut=CUT,
            options=options,
        )
        saving.start(worker.holdings, worker.optimizer)
        saving.commit()
    assert [int(path.name[-2:]) for path in committed(tmp_path)] == [2, 4, 6, 10, 12]


class Shelf:
    """Copies in another directory, as a store would have them."""

    def __init__(self, folder: Path) -> None:
        self._mirror = Mirror(StoreDir(folder))
        self.asked = 0

    def keep(self, path: Path) -> None:
        self._mirror.push(path)

    def ahead_of(self, name: str) -> bool:
        return any(other > name for other in self._mirror.names())

    def names(self) -> list[str]:
        self.asked += 1
        return self._mirror.names()

    def fetch(self, name: str, target: Path) -> None:
        self._mirror.fetch(name, target)


def test_an_intact_local_copy_is_used_without_the_store(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "store")
    shelf.keep(alone(seed=1).save(tmp_path / "here", SingleProcess(), 1))
    state, _, skipped = alone().restore(tmp_path / "here", SingleProcess(), remote=shelf)
    assert (state.step, skipped, shelf.asked) == (1, [], 0)


@pytest.mark.parametrize("harm", ["flip all", "remove all", "remove newest"])
def test_a_copy_takes_the_place_of_what_is_damaged_or_lost(tmp_path: Path, harm: str) -> None:
    shelf, here = Shelf(tmp_path / "store"), tmp_path / "here"
    for step in (1, 2):
        save_as(parts_of(2), here, step)
        shelf.keep(committed(here)[-1])
    if harm == "flip all":
        for path in (one / "part-00001.safetensors" for one in committed(here)):
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    else:
        shutil.rmtree(here if harm == "remove all" else committed(here)[-1])
    group = Threads(3)
    workers = [Worker(own) for own in parts_of(3)]
    for state, _, skipped in group.run(lambda rank: workers[rank].restore(here, group, remote=shelf)):
        assert state.step == 2
        assert len(skipped) == (2 if harm == "flip all" else 0)
    verify(StoreDir(committed(here)[-1]))


def test_the_one_before_is_nearer_than_a_copy_of_the_newest(tmp_path: Path) -> None:
    shelf, here = Shelf(tmp_path / "store"), tmp_path / "here"
    for step in (1, 2):
        shelf.keep(alone(seed=step).save(here, SingleProcess(), step))
    (committed(here)[-1] / "part-00000.safetensors").write_bytes(b"rotten")
    state, _, skipped = alone().restore(here, SingleProcess(), remote=shelf)
    assert (state.step, len(skipped), shelf.asked) == (1, 1, 0)


def test_a_copy_that_is_damaged_too_gives_way_to_the_one_before(tmp_path: Path) -> None:
    shelf, here = Shelf(tmp_path / "store"), tmp_path / "here"
    for step in (1, 2):
        shelf.keep(alone(seed=step).save(here, SingleProcess(), step))
    (committed(here)[0] / "part-00000.safetensors").unlink()
    newest, name = committed(here)[-1], "part-00000.safetensors"
    digest = verify(StoreDir(newest)).files[name].sha256
    (tmp_path / "store" / "objects" / digest).write_bytes(b"rotten")
    (newest / name).unlink()
    state, _, skipped = alone().restore(here, SingleProcess(), remote=shelf)
    assert state.step == 1
    assert len(skipped) == 3
