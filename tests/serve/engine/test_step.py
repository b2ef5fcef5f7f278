"""The engine's step: what it says, what it refuses, what it shares, and what failing one leaves to others."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.models.language import LanguageModel
from windlass.models.weights import load_weights
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.protocol.wire import (
    Cancel,
    Embed,
    EmbeddingVectors,
    Failed,
    Generate,
    PromptScores,
    Tokens,
)
from windlass.spec.shape import DecoderShape

FAMILIES = ("llama", "gpt2")
VOCABULARY = 101

Engines = Callable[..., Engine]
Drain = Callable[[Engine], dict[str, list[Answer]]]
Models = Callable[[str], LanguageModel]


@torch.inference_mode()
def scores(model: LanguageModel, sequence: list[int]) -> torch.Tensor:
    return model.logits(model(torch.tensor([sequence])))[0]


def greedily(model: LanguageModel, prompt: list[int], most: int) -> list[int]:
    """Continue by the torch model, computing everything anew for every token."""
    so_far = list(prompt)
    for _ in range(most):
        so_far.append(int(scores(model, so_far)[-1].argmax()))
    return so_far[len(prompt) :]


def text(answers: list[Answer]) -> list[int]:
    return [token for message in answers if isinstance(message, Tokens) for token in message.tokens]


def answered(engine: Engine, request: Generate, drain: Drain) -> list[Answer]:
    engine.add("me", request)
    return drain(engine)[request.id]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_greedy_answer_is_that_of_the_torch_model(
    family: str, engine: Engines, drain: Drain, model: Models
) -> None:
    prompt = [5, 9, 11, 40]
    got = text(answered(engine(family), Generate("it", prompt, 25, temperature=0.0), drain))
    assert got == greedily(model(family), prompt, 25)


def test_equal_seeds_give_equal_tokens_and_others_others(engine: Engines, drain: Drain) -> None:
    def drawn(seed: int) -> tuple[int, ...]:
        return tuple(text(answered(engine(), Generate("it", [1, 2, 3], 20, seed=seed), drain)))

    assert drawn(3) == drawn(3)
    assert len({drawn(seed) for seed in range(6)}) == 6


def test_the_last_message_says_why_it_is_the_last(engine: Engines, drain: Drain) -> None:
    answers = answered(engine(), Generate("it", [1, 2], 3, temperature=0.0), drain)
    assert [message.finish for message in answers if isinstance(message, Tokens)] == [None, None, "length"]


def test_the_first_token_reports_how_long_its_request_waited_for_a_slot(engine: Engines) -> None:
    busy = engine("llama", EngineSettings(slots=1))
    for id_ in ("first", "second"):
        busy.add("me", Generate(id_, [1, 2], 40, temperature=0.0))
    waits: dict[str, list[float]] = {"first": [], "second": []}
    while not busy.is_idle:
        for _, message in busy.step():
            assert isinstance(message, Tokens)
            waits[message.id].append(message.queued_s)
    assert waits["second"][0] > waits["first"][0]
    assert not any(waits["first"][1:] + waits["second"][1:])


def test_a_stop_token_ends_the_answer_and_is_not_sent(engine: Engines, drain: Drain) -> None:
    whole = text(answered(engine(), Generate("it", [1, 2], 30, temperature=0.0), drain))
    stop = next(token for token in whole[1:] if token != whole[0])
    request = Generate("it", [1, 2], 30, temperature=0.0, stop_tokens=[stop])
    answers = answered(engine(drafts="forced"), request, drain)
    assert text(answers) == whole[: whole.index(stop)]
    assert answers[-1] == Tokens("it", finish="stop")


@pytest.mark.parametrize("drafts", ["off", "forced"])
def test_an_answer_may_fill_the_context_to_the_last_token(
    drafts: str, engine: Engines, drain: Drain, model: Models
) -> None:
    prompt = [5] * 150
    got = text(answered(engine("gpt2", drafts=drafts), Generate("it", prompt, 50, temperature=0.0), drain))
    assert got[:10] == greedily(model("gpt2"), prompt, 10)
    assert len(got) == 50


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"max_tokens": 198}, "context_exceeded", "make 201, but the context is 200"),
        ({"max_tokens": 2**40}, "context_exceeded", "the context is 200"),
        ({"tokens": []}, "bad_tokens", "empty"),
        ({"tokens": [1, VOCABULARY]}, "bad_tokens", "token 101 is not in the vocabulary of 101"),
        ({"tokens": [1, -1]}, "bad_tokens", "token -1"),
        ({"stop_tokens": [999]}, "bad_tokens", "token 999"),
        ({"logit_bias": {999: 1.0}}, "bad_tokens", "token 999"),
        ({"max_tokens": -1}, "bad_request", "max_tokens must be at least 0, got -1"),
        ({"temperature": -0.1}, "bad_request", "temperature must be finite and at least 0, got -0.1"),
        ({"temperature": math.nan}, "bad_request", "temperature must be finite and at least 0, got nan"),
        ({"top_p": 0.0}, "bad_request", "top_p must be in (0, 1], got 0.0"),
        ({"min_p": 1.1}, "bad_request", "min_p must be in [0, 1], got 1.1"),
        ({"top_k": -1}, "bad_request", "top_k must be at least 0, got -1"),
        ({"frequency_penalty": math.inf}, "bad_request", "frequency_penalty must be finite, got inf"),
        (
            {"repetition_penalty": 0.0},
            "bad_request",
            "repetition_penalty must be finite and above 0, got 0.0",
        ),
        ({"logit_bias": {3: math.nan}}, "bad_request", "logit_bias"),
        ({"logprobs": -2}, "bad_request", "logprobs must be at least -1, got -2"),
        (
            {"resumed_tokens": 4},
            "bad_request",
            "resumed_tokens must be from 0 to the length of the prompt, got 4",
        ),
        ({"adapter": "poet"}, "unknown_adapter", "adapter 'poet' is not served here"),
    ],
)
def test_an_invalid_request_is_refused_and_disturbs_no_other(
    change: dict[str, object], code: str, told: str, engine: Engines, drain: Drain, model: Models
) -> None:
    request = Generate(**{"id": "bad", "tokens": [1, 2, 3], "max_tokens": 5, **change})  # type: ignore[arg-type]
    one = engine()
    one.add("me", Generate("good", [1, 2], 4, temperature=0.0))
    one.add("me", request)
    answers = drain(one)
    (failed,) = answers["bad"]
    assert isinstance(failed, Failed)
    assert (failed.code, told in failed.message) == (code, True), failed.message
    assert text(answers["good"]) == greedily(model("llama"), [1, 2], 4)


@pytest.mark.parametrize("again", [Generate("it", [1], 3), Embed("it", [[1, 2]])], ids=["text", "vectors"])
@pytest.mark.parametrize("first", [Generate("it", [1], 3), Embed("it", [[1] * 50])], ids=["text", "vectors"])
def test_an_id_under_way_cannot_be_used_again_by_the_same_owner_only(
    first: Generate | Embed, again: Generate | Embed, engine: Engines
) -> None:
    one = engine()
    for owner, message in (("me", first), ("me", again), ("you", again)):
        one.add(owner, message)
    replies = []
    while not one.is_idle:
        replies += one.step()
    assert [(owner, m.code) for owner, m in replies if isinstance(m, Failed)] == [("me", "duplicate_id")]
    ends = [o for o, m in replies if isinstance(m, EmbeddingVectors) or (isinstance(m, Tokens) and m.finish)]
    assert sorted(ends) == ["me", "you"]


def test_a_cancelled_request_frees_its_slot_at_the_next_step(engine: Engines) -> None:
    one = engine("llama", EngineSettings(slots=1))
    one.add("me", Generate("long", [1], 60))
    one.add("me", Generate("next", [2], 2, temperature=0.0))
    one.step()
    one.add("me", Cancel("long"))
    replies = one.step()
    assert replies[0] == ("me", Tokens("long", finish="cancelled"))
    assert [message.id for _, message in replies[1:]] == ["next"]
    one.add("me", Cancel("nobody asked for this"))
    assert all(message.id == "next" for _, message in one.step())


def test_an_owner_that_goes_takes_its_requests_along(engine: Engines, drain: Drain) -> None:
    one = engine("llama", EngineSettings(slots=2))
    for number in range(4):
        one.add("gone", Generate(str(number), [1], 50))
    one.add("gone", Embed("vectors", [[1, 2]]))
    one.add("me", Generate("mine", [3], 2, temperature=0.0))
    one.step()
    one.forget("gone")
    assert (one.running_count, one.waiting_count) == (0, 1)
    assert list(drain(one)) == ["mine"]


def test_a_long_prompt_does_not_stall_those_who_decode(engine: Engines) -> None:
    one = engine("llama", EngineSettings(prompt_tokens=4))
    one.add("me", Generate("running", [1], 40, temperature=0.0))
    one.step()
    one.add("me", Generate("long", [2] * 40, 1, temperature=0.0))
    for _ in range(9):
        assert [message.id for _, message in one.step()] == ["running"]
    assert [message.id for _, message in one.step()] == ["running", "long"]


def test_several_answers_to_one_prompt_read_it_once(engine: Engines, drain: Drain) -> None:
    computed: list[int] = []
    one = engine("llama", EngineSettings(prompt_tokens=32))
    run = one.runner.run

    def counted(spans: object, tables: object, *, hidden: bool = False) -> object:
        computed.append(sum(len(span.tokens) for span in spans))  # type: ignore[attr-defined]
        return run(spans, tables, hidden=hidden)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.runner, "run", counted)
        for number in range(8):
            one.add("me", Generate(str(number), list(range(97)), 2, seed=number))
        answers = drain(one)
    # 96 tokens in whole blocks once; the last token, and the first of two that were drawn, eight times.
    assert sum(computed) == 96 + 8 * 2
    assert len({tuple(text(answer)) for answer in answers.values()}) > 1


def test_a_known_prefix_is_not_computed_again_but_for_another_tenant(engine: Engines, drain: Drain) -> None:
    one = engine("llama", EngineSettings(prompt_tokens=16))

    def steps(tenant: str) -> int:
        before = one.steps
        one.add("me", Generate("it", list(range(97)), 1, tenant=tenant))
        drain(one)
        return one.steps - before

    assert [steps("a"), steps("a"), steps("b"), steps("a")] == [7, 1, 7, 1]


def test_tenants_that_agreed_share_prefixes_with_one_another_alone(engine: Engines, drain: Drain) -> None:
    one = engine("llama", EngineSettings(prompt_tokens=16))

    def steps(tenant: str, shared: bool) -> int:
        before = one.steps
        one.add("me", Generate("it", list(range(97)), 1, tenant=tenant, shared_prefix=shared))
        drain(one)
        return one.steps - before

    assert [steps("a", True), steps("b", True), steps("c", False), steps("", False)] == [7, 1, 7, 7]


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_model_itself(
    family: str, engine: Engines, drain: Drain, model: Models
) -> None:
    request = Generate("it", [1, 2, 3], 6, temperature=0.7, seed=5, logprobs=3, logit_bias={4: 2.0})
    so_far = [1, 2, 3]
    for message in answered(engine(family), request, drain):
        assert isinstance(message, Tokens)
        wanted = scores(model(family), so_far)[-1].log_softmax(-1)
        best = wanted.topk(3)
        assert message.logprobs == pytest.approx([float(wanted[message.tokens[0]])], abs=1e-4)
        (alternatives,) = message.alternatives
        assert [one.token for one in alternatives] == best.indices.tolist()
        assert [one.logprob for one in alternatives] == pytest.approx(best.values.tolist(), abs=1e-4)
        so_far += message.tokens


def test_logprobs_0_reports_the_chosen_token_alone_and_minus_1_nothing(engine: Engines, drain: Drain) -> None:
    for wanted, has_logprob in ((0, True), (-1, False)):
        (message,) = answered(engine(), Generate("it", [1], 1, logprobs=wanted), drain)
        assert isinstance(message, Tokens)
        assert (bool(message.logprobs), message.alternatives) == (has_logprob, [])


@pytest.mark.parametrize("budget", [3, 7, 256])
def test_prompt_scores_are_those_of_every_token_but_the_first(
    budget: int, engine: Engines, drain: Drain, model: Models
) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    one = engine("gpt2", EngineSettings(prompt_tokens=budget), drafts="forced")
    request = Generate("it", prompt, 1, temperature=0.0, score_prompt=True, logprobs=2)
    first, last = answered(one, request, drain)
    wanted = scores(model("gpt2"), prompt).log_softmax(-1)
    assert isinstance(first, PromptScores)
    assert first.logprobs == pytest.approx([float(wanted[i, t]) for i, t in enumerate(prompt[1:])], abs=1e-4)
    assert [[one.token for one in row] for row in first.alternatives] == wanted[:-1].topk(2).indices.tolist()
    assert text([last]) == greedily(model("gpt2"), prompt, 1)


def test_an_echoed_prompt_whose_last_token_is_read_alone_is_given_no_draft(
    engine: Engines, drain: Drain
) -> None:
    prompt = [1, 2, 3] * 11
    request = Generate("it", prompt, 8, temperature=0.0, score_prompt=True)
    wanted = answered(engine(), request, drain)
    assert (
        answered(engine("llama", EngineSettings(prompt_tokens=32), drafts="forced"), request, drain) == wanted
    )


def test_a_prompt_can_be_scored_without_generating_anything(engine: Engines, drain: Drain) -> None:
    first, last = answered(engine(), Generate("it", [1, 2, 3], 0, score_prompt=True), drain)
    assert isinstance(first, PromptScores)
    assert len(first.logprobs) == 2
    assert last == Tokens("it", finish="length")


def test_scores_and_vectors_of_those_set_aside_half_way_are_reported_once_and_right(
    engine: Engines, drain: Drain
) -> None:
    prompt = list(range(60))
    asked = (
        Generate("scores", prompt, 3, score_prompt=True, temperature=0.0),
        Embed("vectors", [prompt[:50]]),
    )
    one, alone = engine("llama", EngineSettings(slots=2, prompt_tokens=8)), engine()
    for message in asked:
        one.add("me", message)
        alone.add("me", message)
    for _ in range(4):
        one.step()
    reading = list(one._scheduler.running)
    assert all(0 < sequence.cached < 50 for sequence in reading)
    one.add("me", Generate("urgent", [9], 3, priority=1))
    one.add("me", Generate("urgent too", [9], 3, priority=1))
    got, wanted = drain(one), drain(alone)
    assert [sequence.preemptions for sequence in reading] == [1, 1]
    assert got["scores"] == wanted["scores"]
    (mine,), (yours,) = got["vectors"], wanted["vectors"]
    assert isinstance(mine, EmbeddingVectors)
    assert isinstance(yours, EmbeddingVectors)
    assert mine.vectors[0] == pytest.approx(yours.vectors[0], abs=1e-12)


def test_a_presence_penalty_keeps_a_token_from_coming_back(engine: Engines, drain: Drain) -> None:
    def drawn(penalty: float, prompt: list[int]) -> list[int]:
        request = Generate("it", prompt, 5, temperature=0.0, logit_bias={7: 90.0}, presence_penalty=penalty)
        return text(answered(engine(), request, drain))

    assert drawn(0.0, [1]) == [7] * 5
    assert drawn(180.0, [1]).count(7) == 1
    assert drawn(180.0, [7, 7])[0] == 7  # what stands in the prompt is not punished


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_the_normalised_means_of_the_inputs_own_states(
    family: str, engine: Engines, drain: Drain, model: Models
) -> None:
    inputs = [[1, 2, 3], [4], [5] * 120, [6, 7]]
    one = engine(family, EngineSettings(slots=2, prompt_tokens=50))
    one.add("me", Embed("it", inputs))
    (answer,) = drain(one)["it"]
    assert isinstance(answer, EmbeddingVectors)
    for vector, tokens in zip(answer.vectors, inputs, strict=True):
        with torch.inference_mode():
            mean = model(family)(torch.tensor([tokens]))[0].mean(dim=0)
        assert vector == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)


def test_many_inputs_are_embedded_over_several_steps_while_others_decode(
    engine: Engines, drain: Drain
) -> None:
    one = engine("llama", EngineSettings(slots=4))
    one.add("me", Generate("text", [1], 3, temperature=0.0))
    one.add("me", Embed("vectors", [[number] * 64 for number in range(40)]))
    assert [message.id for _, message in one.step()] == ["text"]
    answers = drain(one)
    (vectors,) = answers["vectors"]
    assert isinstance(vectors, EmbeddingVectors)
    assert len(vectors.vectors) == 40
    assert len(text(answers["text"])) == 2


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([], "bad_tokens"),
        ([[1], []], "bad_tokens"),
        ([[999]], "bad_tokens"),
        ([[1] * 201], "context_exceeded"),
    ],
)
def test_wrong_inputs_are_refused(inputs: list[list[int]], code: str, engine: Engines, drain: Drain) -> None:
    one = engine()
    one.add("me", Embed("it", inputs))
    (failed,) = drain(one)["it"]
    assert isinstance(failed, Failed)
    assert failed.code == code


@pytest.fixture
def damaged(shared: ctypes.CDLL, model: Models, tmp_path: Path) -> Callable[..., NativeRunner]:
    """Return a runner of a model in which one weight is no number, and the others are as they were."""

    def made(name: str, row: int, precision: str) -> NativeRunner:
        broken = build(model("llama").shape)
        broken.load_state_dict(model("llama").state_dict())
        with torch.no_grad():
            dict(broken.named_parameters())[name][row] = math.nan
        save_model(broken, tmp_path / "broken")
        weights = load_weights(tmp_path / "broken")
        return NativeRunner(shared, weights, blocks=64, threads=1, precision=precision)

    return made


PRECISIONS = ("float32", "bfloat16", "int8", "int4")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_that_are_no_numbers_fail_their_requests_and_nothing_else(
    precision: str, damaged: Callable[..., NativeRunner], engine: Engines, drain: Drain
) -> None:
    one = Engine(damaged("embedding.weight", 7, precision), EngineSettings(drafts=False))
    one.add("me", Generate("bad", [1, 7, 2], 5))
    one.add("me", Embed("bad vectors", [[1], [2, 7]]))
    good = Generate("good", [1, 2, 3], 20, temperature=0.0)
    one.add("me", good)
    answers = drain(one)
    for id_ in ("bad", "bad vectors"):
        (failed,) = answers[id_]
        assert isinstance(failed, Failed)
        assert failed.code == "not_a_number"
    assert answers["good"] == answered(engine(precision=precision), good, drain)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # quantising what is no number
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["layers.0.attention.key.weight", "layers.1.ffn.down.weight", "norm.weight"])
def test_a_damaged_matrix_never_answers_as_if_nothing_were_wrong(
    name: str, precision: str, damaged: Callable[..., NativeRunner], drain: Drain
) -> None:
    one = Engine(damaged(name, 3, precision), EngineSettings(drafts=False))
    (failed,) = answered(one, Generate("it", [1, 2, 3], 5), drain)
    assert isinstance(failed, Failed)
    assert failed.code == "not_a_number"


def test_blocks_are_given_back_and_bounded(engine: Engines, drain: Drain) -> None:
    one = engine("llama", EngineSettings(max_idle_blocks=5))
    for number in range(20):
        one.add("me", Generate(str(number), [number] * 40, 1))
    drain(one)
    assert (one.blocks_used, one.blocks_idle, one.blocks_in_all) == (0, 5, 64)


def test_costs_are_measured_within_a_context_that_is_no_multiple_of_a_block(
    shared: ctypes.CDLL, tmp_path: Path
) -> None:
    shape = DecoderShape(vocabulary=11, context=19, layers=1, width=8, heads=1, kv_heads=1, ffn_width=8)
    save_model(build(shape, seed=1), tmp_path / "short")
    runner = NativeRunner(shared, load_weights(tmp_path / "short"), blocks=4, threads=1)
    longest: list[int] = []
    run = runner.run

    def watched(spans: object, tables: np.ndarray[object, object], *, hidden: bool = False) -> object:
        longest.extend(span.position + len(span.tokens) for span in spans)  # type: ignore[attr-defined]
        return run(spans, tables, hidden=hidden)  # type: ignore[arg-type]

    runner.run = watched  # type: ignore[method-assign, assignment]
    Engine(runner, EngineSettings(drafts=True))
    assert max(longest) == 19
