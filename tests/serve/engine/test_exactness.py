"""An answer is the same alone and in any mix, on any schedule, to the last bit.

Every mix draws its own engine (blocks, slots, chunks, cache, drafts, precision) and its own company
(tenants, priorities, shared prefixes, moments of arrival), and is compared message by message with
requests that were answered one at a time by an engine without any of that.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from windlass.models.weights import ModelWeights
from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.protocol.wire import Cancel, Embed, EmbeddingVectors, Generate, Tokens

PRECISIONS = ("float32", "bfloat16", "int8", "int4")
ALONE = EngineSettings(slots=1, shares_prefixes=False)
VOCABULARY = 101
NETWORKS = ("llama", "llama", "tied", "gpt2")
FEATURED = (
    "qwen2", "qwen3", "gemma2", "gemma3", "phi", "olmo2", "smollm3", "stablelm", "granite", "starcoder2",
    "gpt_neox", "falcon", "sinks", "relu", "relu2", "mixtral", "qwen2_moe", "gpt_oss",
)  # fmt: skip
"""Shapes with features that Llama and GPT-2 lack."""

Engines = Callable[..., Engine]
Drain = Callable[[Engine], dict[str, list[Answer]]]


def a_prompt(chance: random.Random, known: list[int]) -> list[int]:
    """Begin as others do, or repeat yourself, or neither."""
    if chance.random() < 0.3:
        return (known[: chance.randint(2, 9)] * 12)[: chance.randint(4, 60)]
    new = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 30))]
    return known[: chance.randrange(90)] + new


def a_request(chance: random.Random, number: int, known: list[int]) -> Generate:
    return Generate(
        str(number),
        a_prompt(chance, known),
        chance.randint(0, 40),
        temperature=chance.choice([0.0, 0.0, 0.8, 1.5]),
        top_k=chance.choice([0, 0, 20]),
        top_p=chance.choice([1.0, 0.9]),
        presence_penalty=chance.choice([0.0, 0.0, 0.5]),
        frequency_penalty=chance.choice([0.0, 0.0, 0.3]),
        repetition_penalty=chance.choice([1.0, 1.0, 1.2]),
        seed=chance.randrange(2**60),
        logprobs=chance.choice([-1, -1, 0, 3]),
        stop_tokens=chance.choice([[], [], [5, 6, 7]]),
        score_prompt=chance.random() < 0.2,
        tenant=chance.choice("ab"),
        priority=chance.choice([0, 0, 0, 1, 2]),
    )


def some_requests(chance: random.Random) -> list[Generate]:
    known = [chance.randrange(VOCABULARY) for _ in range(90)]
    return [a_request(chance, number, known) for number in range(chance.randint(2, 12))]


def a_crowded_engine(
    chance: random.Random,
    engine: Engines,
    name: str = "llama",
    precision: str = "float32",
    half: bool = False,
) -> Engine:
    settings = EngineSettings(
        slots=chance.choice([2, 4, 16]),
        prompt_tokens=chance.choice([5, 32, 512]),
        shares_prefixes=chance.random() < 0.8,
        max_idle_blocks=chance.choice([None, None, 3]),
        policy=chance.choice(["lru", "lfu"]),
    )
    drafts, blocks = chance.choice(["forced", "forced", "off"]), chance.choice([13, 16, 30, 64])
    return engine(name, settings, precision=precision, half=half, blocks=blocks, drafts=drafts)


def timeless(message: Answer) -> Answer:
    """Leave out how long a request waited, in which no two runs are alike."""
    return msgspec.structs.replace(message, queued_s=0.0) if isinstance(message, Tokens) else message


def together(one: Engine, requests: list[Generate], chance: random.Random) -> dict[str, list[Answer]]:
    """Let requests arrive at random moments; blocks are in their places after every step."""
    waiting, answers = list(requests), {request.id: [] for request in requests}
    while waiting or not one.is_idle:
        while waiting and chance.random() < 0.3:
            one.add("me", waiting.pop())
        for _, message in one.step():
            answers[message.id].append(timeless(message))
        one.check()
    assert one.blocks_used == 0
    return answers


def compare(seed: int, engine: Engines, drain: Drain, names: Sequence[str] = NETWORKS) -> None:
    chance = random.Random(seed)
    name = chance.choice(names)
    precision, half = chance.choice(PRECISIONS), chance.random() < 0.5
    requests = some_requests(chance)
    got = together(a_crowded_engine(chance, engine, name, precision, half), requests, chance)
    for request in requests:
        single = engine(name, ALONE, precision=precision, half=half)
        single.add("me", request)
        assert got[request.id] == drain(single)[request.id], (seed, request)


@pytest.mark.parametrize("seed", range(12))
def test_company_and_schedule_do_not_change_an_answer(seed: int, engine: Engines, drain: Drain) -> None:
    compare(seed, engine, drain)


@pytest.mark.parametrize("name", FEATURED)
def test_company_and_schedule_do_not_change_an_answer_of_a_model_with_other_features(
    name: str, engine: Engines, drain: Drain
) -> None:
    compare(600 + FEATURED.index(name), engine, drain, (name,))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURED)
@pytest.mark.parametrize("seed", range(700, 710))
def test_company_and_schedule_do_not_change_any_answer_of_a_model_with_other_features(
    name: str, seed: int, engine: Engines, drain: Drain
) -> None:
    compare(seed, engine, drain, (name,))


@pytest.mark.parametrize("name", ["fading", "ngram", "hmm", "mlp"])
@pytest.mark.parametrize("seed", range(500, 508))
def test_company_and_schedule_do_not_change_an_answer_of_a_statistical_model(
    name: str, seed: int, engine: Engines, drain: Drain
) -> None:
    compare(seed, engine, drain, (name,))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_company_and_schedule_do_not_change_any_answer_of_hundreds(
    seed: int, engine: Engines, drain: Drain
) -> None:
    compare(seed, engine, drain)


def greedy(engine: Engine, prompts: list[list[int]], drain: Drain) -> list[list[Answer]]:
    for number, prompt in enumerate(prompts):
        engine.add("me", Generate(str(number), prompt, 30, temperature=0.0))
    answers = drain(engine)
    return [answers[str(number)] for number in range(len(prompts))]


PROMPTS = [[1, 2, 3] * 15, [1, 2, 3] * 15 + [4], [9] * 33, [50], list(range(60))]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("settings", "wishes"),
    [
        (EngineSettings(shares_prefixes=False), {}),
        (EngineSettings(prompt_tokens=1), {}),
        (EngineSettings(slots=2), {}),
        (EngineSettings(), {"blocks": 14}),
        (EngineSettings(), {"drafts": "forced"}),
        (EngineSettings(max_idle_blocks=0, policy="lfu"), {"drafts": "forced", "blocks": 14}),
        (EngineSettings(), {"threads": 2}),
    ],
    ids=["no cache", "token by token", "few slots", "few blocks", "drafts", "everything", "threads"],
)
def test_no_setting_changes_a_greedy_answer(
    precision: str, settings: EngineSettings, wishes: dict[str, object], engine: Engines, drain: Drain
) -> None:
    wanted = greedy(engine(precision=precision), PROMPTS, drain)
    assert greedy(engine("llama", settings, precision=precision, **wishes), PROMPTS, drain) == wanted


def test_a_second_time_is_like_the_first(engine: Engines, drain: Drain) -> None:
    one = engine(drafts="forced")
    first = greedy(one, PROMPTS, drain)
    assert one.blocks_idle > 0
    assert greedy(one, PROMPTS, drain) == first


def test_sequences_were_really_set_aside_and_drafts_really_right(engine: Engines, drain: Drain) -> None:
    """The mixes above prove nothing unless these things happen in them."""
    crowded = engine("llama", EngineSettings(slots=4), blocks=14, drafts="forced")
    for number, prompt in enumerate(PROMPTS):
        crowded.add("me", Generate(str(number), prompt, 100, temperature=0.0))
    sequences = list(crowded._scheduler)
    drain(crowded)
    assert sum(one.preemptions for one in sequences) > 0
    assert crowded.steps < crowded.tokens


@pytest.mark.parametrize("seed", range(8))
def test_cancelling_and_vanishing_leave_the_others_as_they_were(
    seed: int, engine: Engines, drain: Drain
) -> None:
    chance = random.Random(seed)
    requests = some_requests(chance)
    one = a_crowded_engine(chance, engine)
    owners = {request.id: chance.choice(["stays", "stays", "vanishes"]) for request in requests}
    cancelled = {request.id for request in requests if chance.random() < 0.3}
    answers: dict[str, list[Answer]] = {request.id: [] for request in requests}
    for request in requests:
        one.add(owners[request.id], request)
    step, moments = 0, {id_: chance.randrange(25) for id_ in cancelled}
    while not one.is_idle:
        for id_ in (id_ for id_, at in moments.items() if at == step):
            one.add(owners[id_], Cancel(id_))
        if step == 10:
            one.forget("vanishes")
        for owner, message in one.step():
            assert owner == "stays" or step < 10
            answers[message.id].append(timeless(message))
        one.check()
        step += 1
    assert one.blocks_used == 0
    for request in requests:
        single = engine("llama", ALONE)
        single.add("me", request)
        wanted, got = drain(single)[request.id], answers[request.id]
        if got and got[-1] == Tokens(request.id, finish="cancelled"):
            assert request.id in cancelled
            got.pop()
            wanted = wanted[: len(got)]
        elif owners[request.id] == "vanishes":
            wanted = wanted[: len(got)]
        assert got == wanted


@pytest.mark.parametrize("name", ["llama", "fading"])
@pytest.mark.parametrize("seed", range(4))
def test_vectors_are_the_same_in_a_batch_with_texts(
    name: str, seed: int, engine: Engines, drain: Drain
) -> None:
    chance = random.Random(seed)
    requests = some_requests(chance)
    inputs = [a_prompt(chance, requests[0].tokens) for _ in range(5)]
    single = engine(name, ALONE)
    single.add("me", Embed("vectors", inputs))
    (wanted,) = drain(single)["vectors"]
    one = a_crowded_engine(chance, engine, name)
    one.add("me", Embed("vectors", inputs, tenant="a"))
    for request in requests:
        one.add("me", request)
    (got,) = drain(one)["vectors"]
    assert isinstance(got, EmbeddingVectors)
    assert isinstance(wanted, EmbeddingVectors)
    for mine, yours in zip(got.vectors, wanted.vectors, strict=True):
        assert mine == pytest.approx(yours, abs=1e-12)  # sums of chunks are rounded in another order


@pytest.fixture(scope="module")
def adapted(shared: ctypes.CDLL, weights: Callable[[str], ModelWeights]) -> NativeRunner:
    """A runner with two adapters, numbers 0 and 1."""
    runner = NativeRunner(shared, weights("llama"), blocks=20, threads=1)
    numbers = np.random.default_rng(2)
    for rank in (2, 5):
        matrices = {
            name: tuple(
                numbers.standard_normal(size).astype(np.float32) for size in ((rank, columns), (rows, rank))
            )
            for name, (rows, columns) in (("layers.0.attention.value.weight", (16, 48)),)
        }
        runner.take_adapter(Adapter(str(rank), rank, 0.5, matrices))  # type: ignore[arg-type]
    return runner


@pytest.mark.parametrize("seed", range(4))
def test_adapters_share_steps_but_neither_answers_nor_prefixes(
    seed: int, adapted: NativeRunner, drain: Drain
) -> None:
    chance = random.Random(seed)
    names = {"small": 0, "large": 1}
    requests = [
        msgspec.structs.replace(request, adapter=chance.choice(["", *names]))
        for request in some_requests(chance)
    ]
    got = together(Engine(adapted, EngineSettings(slots=4), adapters=names), requests, chance)
    for request in requests:
        single = Engine(adapted, replace(ALONE, drafts=False), adapters=names)
        single.add("me", request)
        assert got[request.id] == drain(single)[request.id]
    same = [Generate(name, requests[0].tokens, 9, temperature=0.0, adapter=name) for name in ("", *names)]
    answers = together(Engine(adapted, EngineSettings(), adapters=names), same, chance)
    texts = {str([m.tokens for m in answer if isinstance(m, Tokens)]) for answer in answers.values()}
    assert len(texts) == 3
