"""Several models in one process: loading on demand, leaving in turn, failing alone."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.serve.engine.engine_api import EngineProtocol, Reply
from windlass.serve.engine.model_pool import RETRY_S, ModelPool
from windlass.serve.engine.model_slot import ModelSlot
from windlass.serve.engine.sequence import Owner
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.protocol.wire import Cancel, Embed, Failed, Generate, ModelInfo, ToEngine, Tokens


class Scripted:
    """An engine without a model: an answer takes as many steps as it has tokens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = self.tokens = 0
        self.left: dict[tuple[Owner, str], int] = {}

    @property
    def running_count(self) -> int:
        return len(self.left)

    waiting_count = blocks_used = blocks_idle = blocks_in_all = 0

    @property
    def is_idle(self) -> bool:
        return not self.left

    def add(self, owner: Owner, message: ToEngine) -> None:
        if isinstance(message, Generate):
            self.left[owner, message.id] = message.max_tokens
        else:
            self.left.pop((owner, message.id), None)

    def forget(self, owner: Owner) -> None:
        self.left = {key: left for key, left in self.left.items() if key[0] != owner}

    def rest(self) -> None:
        pass

    def step(self) -> list[Reply]:
        self.steps += 1
        replies: list[Reply] = []
        for (owner, id_), left in list(self.left.items()):
            self.left[owner, id_] = left - 1
            self.tokens += 1
            if left == 1:
                del self.left[owner, id_]
            replies.append((owner, Tokens(id_, [0], finish="length" if left == 1 else None)))
        return replies


def slot(name: str, size: int = 1, load: Callable[[], EngineProtocol] | None = None) -> ModelSlot:
    return ModelSlot(ModelInfo(name, "llama", 1, 8, 8, 8), size, load or (lambda: Scripted(name)))


def ask(pool: ModelPool, model: str, id_: str, tokens: int = 2, owner: str = "me") -> None:
    pool.add(owner, Generate(id_, [1], tokens, model=model))


def run(pool: ModelPool) -> dict[str, list[Tokens | Failed]]:
    """Step until nothing is left to do; return what was said, by request."""
    said: dict[str, list[Tokens | Failed]] = {}
    for _ in range(10_000):
        if pool.is_idle:
            return said
        for _, message in pool.step():
            assert isinstance(message, Tokens | Failed)
            said.setdefault(message.id, []).append(message)
    raise AssertionError("the pool never became idle")


def test_a_model_is_loaded_when_it_is_requested() -> None:
    pool = ModelPool([slot("a"), slot("b")])
    assert pool.in_memory == []
    ask(pool, "b", "1")
    assert len(run(pool)["1"]) == 2
    assert pool.in_memory == ["b"]


def test_a_request_that_names_no_model_goes_to_the_first() -> None:
    pool = ModelPool([slot("a"), slot("b")])
    ask(pool, "", "1")
    run(pool)
    assert pool.in_memory == ["a"]


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    pool = ModelPool([slot("shakespeare")])
    ask(pool, "shakespear", "1")
    (failed,) = run(pool)["1"]
    assert isinstance(failed, Failed)
    assert failed.code == "unknown_model"
    assert "'shakespeare'" in failed.message


def test_the_longest_unused_model_makes_room() -> None:
    pool = ModelPool([slot("a"), slot("b"), slot("c")], budget=2)
    for number, name in enumerate("abac"):
        ask(pool, name, str(number))
        run(pool)
    assert pool.in_memory == ["a", "c"]


def test_a_busy_model_finishes_before_it_leaves() -> None:
    pool = ModelPool([slot("a"), slot("b")], budget=1)
    ask(pool, "a", "long", tokens=50)
    while not pool.running_count:
        pool.step()
    ask(pool, "b", "next", tokens=1)
    said = run(pool)
    assert said["long"][-1] == Tokens("long", [0], finish="length")
    assert said["next"] == [Tokens("next", [0], finish="length")]
    assert pool.in_memory == ["b"]


def test_a_model_that_never_rests_cannot_keep_the_others_out() -> None:
    pool = ModelPool([slot("a"), slot("b")], budget=1)
    ask(pool, "a", "a0", tokens=5)
    ask(pool, "b", "b", tokens=1)
    answered: list[str] = []
    for number in range(1, 400):
        ask(pool, "a", f"a{number}", tokens=5)
        answered += [m.id for _, m in pool.step() if isinstance(m, Tokens) and m.finish]
        if "b" in answered:
            return
    raise AssertionError("b was never served")


def test_others_are_served_while_a_model_loads() -> None:
    go = threading.Event()

    def slow() -> EngineProtocol:
        go.wait(30)
        return Scripted("b")

    pool = ModelPool([slot("a"), slot("b", load=slow)])
    ask(pool, "a", "first")
    run(pool)
    ask(pool, "b", "late")
    ask(pool, "a", "soon")
    said: list[str] = []
    while "soon" not in said:
        said += [m.id for _, m in pool.step() if isinstance(m, Tokens) and m.finish]
    assert not pool.is_idle
    go.set()
    assert len(run(pool)["late"]) == 2


def test_a_model_that_cannot_be_loaded_fails_alone_and_is_tried_again_later() -> None:
    now = [0.0]
    tries: list[int] = []

    def broken() -> EngineProtocol:
        tries.append(1)
        raise Damaged("model.safetensors: not what was written")

    pool = ModelPool([slot("a"), slot("b", load=broken)], budget=1, clock=lambda: now[0])
    ask(pool, "b", "1")
    ask(pool, "a", "2")
    said = run(pool)
    assert said["1"] == [
        Failed("1", "model_failed", "'b' cannot be loaded: model.safetensors: not what was written")
    ]
    assert len(said["2"]) == 2
    ask(pool, "b", "3")
    assert isinstance(run(pool)["3"][0], Failed)
    assert len(tries) == 1
    now[0] = RETRY_S
    ask(pool, "b", "4")
    run(pool)
    assert len(tries) == 2


def test_a_mistake_of_ours_in_loading_ends_no_other_model() -> None:
    def wrong() -> EngineProtocol:
        raise ZeroDivisionError

    pool = ModelPool([slot("a"), slot("b", load=wrong)])
    ask(pool, "b", "1")
    (failed,) = run(pool)["1"]
    assert failed == Failed("1", "model_failed", "'b' cannot be loaded: ZeroDivisionError")


def test_what_waits_for_a_model_can_be_cancelled_and_forgotten() -> None:
    go = threading.Event()
    pool = ModelPool([slot("a", load=lambda: (go.wait(30), Scripted("a"))[1])])
    ask(pool, "a", "1")
    ask(pool, "a", "2", owner="you")
    pool.add("me", Cancel("1"))
    pool.forget("you")
    assert run(pool) == {"1": [Tokens("1", finish="cancelled")]}
    go.set()


def test_a_model_that_can_never_fit_is_refused_at_the_start() -> None:
    with pytest.raises(BadInput, match="'big' needs"):
        ModelPool([slot("small"), slot("big", size=3)], budget=2)


def test_models_are_loaded_ahead_as_far_as_there_is_room() -> None:
    pool = ModelPool([slot("a"), slot("b", size=2), slot("c")], budget=2)
    pool.warm()
    assert run(pool) == {}
    assert pool.in_memory == ["a", "c"]


def test_who_is_waited_for_comes_before_who_is_loaded_ahead() -> None:
    order: list[str] = []

    def noting(name: str) -> ModelSlot:
        return slot(name, load=lambda: (order.append(name), Scripted(name))[1])

    pool = ModelPool([noting(name) for name in "abc"])
    pool.warm()
    ask(pool, "c", "1")
    run(pool)
    assert order == ["c", "a", "b"]


def test_embeddings_name_their_model_too() -> None:
    pool = ModelPool([slot("a"), slot("b")])
    pool.add("me", Embed("1", [[1]], model="b"))
    run(pool)
    assert pool.in_memory == ["b"]


requests = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 3)), max_size=30)


@settings(max_examples=25, deadline=None)
@given(requests=requests, sizes=st.lists(st.integers(1, 3), min_size=4, max_size=4), room=st.integers(3, 8))
def test_every_request_is_answered_in_full_and_memory_stays_within_the_budget(
    requests: list[tuple[str, int, int]], sizes: list[int], room: int
) -> None:
    held = [0]
    slots: list[ModelSlot] = [slot(name, size) for name, size in zip("abcd", sizes, strict=True)]
    pool = ModelPool(slots, budget=room)
    said: dict[str, int] = {}

    def step() -> None:
        for _, message in pool.step():
            assert isinstance(message, Tokens)
            said[message.id] = said.get(message.id, 0) + len(message.tokens)
        held[0] = max(held[0], sum(one.held_bytes for one in slots))

    for number, (name, tokens, steps) in enumerate(requests):
        ask(pool, name, str(number), tokens)
        for _ in range(steps):
            step()
    while not pool.is_idle:
        step()
    assert said == {str(number): tokens for number, (_, tokens, _) in enumerate(requests)}
    assert held[0] <= room
