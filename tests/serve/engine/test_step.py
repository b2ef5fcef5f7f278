"""The engine beside a plain loop that computes every sequence alone and whole, on tiny float32 models."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.models.build import build
from windlass.models.language import LanguageModel
from windlass.serve.engine.step import Answer, Engine
from windlass.spec.shape import BertShape, Gpt2Shape, LlamaShape
from windlass.spec.wire import Cancel, Embed, Failed, Generate, PromptScores, Tokens, Vectors

VOCABULARY = 41
CONTEXT = 64
SIZES = {"vocabulary": VOCABULARY, "context": CONTEXT, "layers": 2, "width": 24, "heads": 6, "ffn_width": 40}
FAMILIES = ("llama", "gpt2")

tokens = st.integers(0, VOCABULARY - 1)
prompts = st.lists(tokens, min_size=1, max_size=30)


@cache
def model(family: str) -> LanguageModel:
    """Return a model whose scores lie far enough apart that rounding does not decide between them."""
    shapes = {
        "llama": LlamaShape(kv_heads=2, **SIZES),
        "gpt2": Gpt2Shape(**SIZES),
        "bert": BertShape(**SIZES),
    }
    built = build(shapes[family], seed=3)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return built


@torch.inference_mode()
def alone(family: str, prompt: list[int], most: int) -> list[int]:
    """Continue greedily, computing everything anew for every token."""
    so_far = list(prompt)
    for _ in range(most):
        so_far.append(int(scores(family, so_far)[-1].argmax()))
    return so_far[len(prompt) :]


@torch.inference_mode()
def scores(family: str, sequence: list[int]) -> torch.Tensor:
    one = model(family)
    return one.logits(one(torch.tensor([sequence])))[0]


def drain(engine: Engine) -> dict[str, list[Answer]]:
    """Step until nothing is left; return the answers by request."""
    answers: dict[str, list[Answer]] = {}
    while not engine.is_idle:
        for _, message in engine.step():
            answers.setdefault(message.id, []).append(message)
    return answers


def text(answers: list[Answer]) -> list[int]:
    return [token for message in answers if isinstance(message, Tokens) for token in message.tokens]


def answered(family: str, request: Generate, slots: int = 4) -> list[Answer]:
    engine = Engine(model(family), slots=slots)
    engine.add("me", request)
    return drain(engine)[request.id]


def generated(family: str, request: Generate) -> list[int]:
    return text(answered(family, request))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 12), prompts, st.integers(1, 20)), min_size=1, max_size=9),
    slots=st.integers(1, 5),
    budget=st.integers(1, 40),
)
def test_company_does_not_change_a_greedy_answer(
    family: str, arrivals: list[tuple[int, list[int], int]], slots: int, budget: int
) -> None:
    engine = Engine(model(family), slots=slots, prompt_tokens_per_step=budget)
    got: dict[str, list[int]] = {}
    step = 0
    while step <= 12 or not engine.is_idle:
        for number, (at, prompt, most) in enumerate(arrivals):
            if at == step:
                engine.add("me", Generate(str(number), prompt, most, temperature=0.0))
        for _, message in engine.step():
            assert isinstance(message, Tokens)
            got.setdefault(message.id, []).extend(message.tokens)
        assert engine.running_count <= slots
        step += 1
    wanted = {str(i): alone(family, prompt, most) for i, (_, prompt, most) in enumerate(arrivals)}
    assert got == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_seeds_give_equal_tokens_in_any_company(family: str) -> None:
    request = Generate("it", [1, 2, 3], 30, temperature=1.0, top_p=0.95, seed=77)
    engine = Engine(model(family), slots=3, prompt_tokens_per_step=5)
    for other in range(6):
        engine.add("me", Generate(f"other {other}", [other] * 9, 5 + other, seed=other))
    engine.add("me", request)
    assert text(drain(engine)["it"]) == generated(family, request)


def test_other_seeds_give_other_tokens() -> None:
    answers = {tuple(generated("llama", Generate("it", [1, 2, 3], 20, seed=seed))) for seed in range(6)}
    assert len(answers) == 6


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(
    prompt=prompts,
    cut=st.integers(1, 19),
    seed=st.integers(0, 2**63 - 1),
    penalty=st.sampled_from([0.0, 1.5]),
)
def test_another_engine_goes_on_where_one_stopped(
    family: str, prompt: list[int], cut: int, seed: int, penalty: float
) -> None:
    whole = generated(family, Generate("it", prompt, 20, seed=seed, frequency_penalty=penalty))
    rest = Generate(
        "it", prompt + whole[:cut], 20 - cut, seed=seed, frequency_penalty=penalty, resumed_tokens=cut
    )
    assert generated(family, rest) == whole[cut:]


def test_the_last_message_says_why_it_is_the_last() -> None:
    answers = answered("llama", Generate("it", [1, 2], 3, temperature=0.0))
    assert [message.finish for message in answers if isinstance(message, Tokens)] == [None, None, "length"]


def test_a_stop_token_ends_the_answer_and_is_not_sent() -> None:
    whole = alone("llama", [1, 2], 30)
    stop = next(token for token in whole[1:] if token != whole[0])
    answers = answered("llama", Generate("it", [1, 2], 30, temperature=0.0, stop_tokens=[stop]))
    assert text(answers) == whole[: whole.index(stop)]
    assert answers[-1] == Tokens("it", finish="stop")


def test_an_answer_may_fill_the_context_to_the_last_token() -> None:
    prompt = [5] * 10
    assert generated("gpt2", Generate("it", prompt, 54, temperature=0.0)) == alone("gpt2", prompt, 54)


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"most_tokens": 62}, "context_exceeded", "make 65, but the context is 64"),
        ({"tokens": []}, "bad_tokens", "empty"),
        ({"tokens": [1, VOCABULARY]}, "bad_tokens", "token 41 is not in the vocabulary of 41"),
        ({"tokens": [1, -1]}, "bad_tokens", "token -1"),
        ({"stop_tokens": [99]}, "bad_tokens", "token 99"),
        ({"logit_bias": {99: 1.0}}, "bad_tokens", "token 99"),
        ({"most_tokens": -1}, "bad_request", "most_tokens = -1"),
        ({"temperature": -0.1}, "bad_request", "temperature = -0.1"),
        ({"temperature": math.nan}, "bad_request", "temperature = nan"),
        ({"top_p": 0.0}, "bad_request", "top_p = 0.0"),
        ({"min_p": 1.1}, "bad_request", "min_p = 1.1"),
        ({"top_k": -1}, "bad_request", "top_k = -1"),
        ({"frequency_penalty": math.inf}, "bad_request", "frequency_penalty = inf"),
        ({"logit_bias": {3: math.nan}}, "bad_request", "logit_bias"),
    ],
)
def test_what_cannot_be_is_refused_and_disturbs_nobody(
    change: dict[str, object], code: str, told: str
) -> None:
    request = Generate(**{"id": "bad", "tokens": [1, 2, 3], "most_tokens": 5, **change})  # type: ignore[arg-type]
    engine = Engine(model("llama"), slots=2)
    engine.add("me", Generate("good", [1, 2], 4, temperature=0.0))
    engine.add("me", request)
    answers = drain(engine)
    (failed,) = answers["bad"]
    assert isinstance(failed, Failed)
    assert (failed.code, told in failed.message) == (code, True), failed.message
    assert text(answers["good"]) == alone("llama", [1, 2], 4)


def test_an_id_under_way_cannot_be_used_again_by_the_same_owner_only() -> None:
    engine = Engine(model("llama"), slots=2)
    for owner in ("me", "me", "you"):
        engine.add(owner, Generate("it", [1], 3, temperature=0.0))
    replies = [reply for _ in range(6) for reply in engine.step()]
    failed = [(owner, m.code) for owner, m in replies if isinstance(m, Failed)]
    assert failed == [("me", "duplicate_id")]
    assert {owner for owner, m in replies if isinstance(m, Tokens) and m.finish} == {"me", "you"}


def test_a_cancelled_request_frees_its_slot_at_the_next_step() -> None:
    engine = Engine(model("llama"), slots=1)
    engine.add("me", Generate("long", [1], 60))
    engine.add("me", Generate("next", [2], 2, temperature=0.0))
    engine.step()
    engine.add("me", Cancel("long"))
    replies = engine.step()
    assert ("me", Tokens("long", finish="cancelled")) in replies
    assert text([m for _, m in replies if m.id == "next"]) == alone("llama", [2], 1)
    assert "long" not in drain(engine)


@pytest.mark.parametrize("victim", range(5))
def test_cancelling_one_of_many_leaves_the_others_as_they_were(victim: int) -> None:
    engine = Engine(model("gpt2"), slots=5, prompt_tokens_per_step=8)
    asked = {str(i): [i + 1] * (3 + 5 * i) for i in range(5)}
    for id_, prompt in asked.items():
        engine.add("me", Generate(id_, prompt, 12, temperature=0.0))
    got = {id_: [] for id_ in asked}
    for step in range(60):
        if step == 4:
            engine.add("me", Cancel(str(victim)))
        for _, message in engine.step():
            got[message.id] += message.tokens if isinstance(message, Tokens) else []
    for id_, prompt in asked.items():
        if id_ != str(victim):
            assert got[id_] == alone("gpt2", prompt, 12)


def test_a_request_can_be_cancelled_after_the_cache_has_grown() -> None:
    engine = Engine(model("llama"), slots=6)
    for number in range(6):
        engine.add("me", Generate(str(number), [number + 1] * 5, 20, temperature=0.0))
    before = engine.step() + engine.step()
    engine.add("me", Cancel("0"))
    answers = drain(engine)
    for number in range(1, 6):
        id_ = str(number)
        got = text([m for _, m in before if m.id == id_]) + text(answers[id_])
        assert got == alone("llama", [number + 1] * 5, 20)


def test_an_owner_that_goes_takes_its_requests_along() -> None:
    engine = Engine(model("llama"), slots=2)
    for number in range(4):
        engine.add("gone", Generate(str(number), [1], 50))
    engine.add("gone", Embed("vectors", [[1, 2]]))
    engine.add("me", Generate("mine", [3], 2, temperature=0.0))
    engine.step()
    engine.forget("gone")
    assert (engine.running_count, engine.waiting_count) == (0, 1)
    answers = drain(engine)
    assert list(answers) == ["mine"]
    assert text(answers["mine"]) == alone("llama", [3], 2)


def test_a_long_prompt_does_not_stall_those_who_decode() -> None:
    engine = Engine(model("llama"), slots=2, prompt_tokens_per_step=4)
    engine.add("me", Generate("running", [1], 40, temperature=0.0))
    engine.step()
    engine.add("me", Generate("long", [2] * 40, 1, temperature=0.0))
    for _ in range(9):
        assert [message.id for _, message in engine.step()] == ["running"]


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_the_model_itself(family: str) -> None:
    request = Generate("it", [1, 2, 3], 6, temperature=0.7, seed=5, logprobs=3, logit_bias={4: 2.0})
    answers = [m for m in answered(family, request) if isinstance(m, Tokens)]
    so_far = [1, 2, 3]
    for message in answers:
        wanted = scores(family, so_far)[-1].log_softmax(-1)
        best = wanted.topk(3)
        assert message.logprobs == pytest.approx([float(wanted[message.tokens[0]])], abs=1e-4)
        (alternatives,) = message.alternatives
        assert [one.token for one in alternatives] == best.indices.tolist()
        assert [one.logprob for one in alternatives] == pytest.approx(best.values.tolist(), abs=1e-4)
        so_far += message.tokens


def test_logprobs_0_reports_the_chosen_token_alone_and_minus_1_nothing() -> None:
    for wanted, has_logprob in ((0, True), (-1, False)):
        (message,) = answered("llama", Generate("it", [1], 1, logprobs=wanted))
        assert isinstance(message, Tokens)
        assert (bool(message.logprobs), message.alternatives) == (has_logprob, [])


@pytest.mark.parametrize("budget", [3, 256])
def test_prompt_scores_are_those_of_every_token_but_the_first(budget: int) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    engine = Engine(model("gpt2"), slots=1, prompt_tokens_per_step=budget)
    engine.add("me", Generate("it", prompt, 1, temperature=0.0, score_prompt=True, logprobs=2))
    first, last = drain(engine)["it"]
    wanted = scores("gpt2", prompt).log_softmax(-1)
    assert isinstance(first, PromptScores)
    assert first.logprobs == pytest.approx([float(wanted[i, t]) for i, t in enumerate(prompt[1:])], abs=1e-4)
    assert [[one.token for one in row] for row in first.alternatives] == wanted[:-1].topk(2).indices.tolist()
    assert text([last]) == alone("gpt2", prompt, 1)


def test_a_prompt_can_be_scored_without_generating_anything() -> None:
    first, last = answered("llama", Generate("it", [1, 2, 3], 0, score_prompt=True))
    assert isinstance(first, PromptScores)
    assert len(first.logprobs) == 2
    assert last == Tokens("it", finish="length")


def test_a_frequency_penalty_keeps_a_token_from_coming_back() -> None:
    bias = {7: 30.0}
    plain = generated("llama", Generate("it", [1], 5, temperature=0.0, logit_bias=bias))
    punished = generated(
        "llama", Generate("it", [1], 5, temperature=0.0, logit_bias=bias, presence_penalty=100.0)
    )
    assert plain == [7] * 5
    assert punished.count(7) == 1


def test_a_token_in_the_prompt_is_not_punished() -> None:
    request = Generate("it", [7, 7], 1, temperature=0.0, logit_bias={7: 30.0}, presence_penalty=100.0)
    assert generated("llama", request) == [7]


@pytest.mark.parametrize("family", [*FAMILIES, "bert"])
def test_vectors_are_the_normalised_means_of_the_inputs_own_states(family: str) -> None:
    inputs = [[1, 2, 3], [4], [5] * 20, [6, 7]]
    engine = Engine(model(family), slots=2)
    engine.add("me", Embed("it", inputs))
    (answer,) = drain(engine)["it"]
    assert isinstance(answer, Vectors)
    for vector, one in zip(answer.vectors, inputs, strict=True):
        with torch.inference_mode():
            mean = model(family)(torch.tensor([one]))[0].mean(dim=0)
        assert vector == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)


def test_many_inputs_are_embedded_over_several_steps_while_others_decode() -> None:
    engine = Engine(model("llama"), slots=2)
    engine.add("me", Embed("vectors", [[number % VOCABULARY] * 64 for number in range(100)]))
    engine.add("me", Generate("text", [1], 3, temperature=0.0))
    assert [message.id for _, message in engine.step()] == ["text"]
    answers = drain(engine)
    (vectors,) = answers["vectors"]
    assert isinstance(vectors, Vectors)
    assert len(vectors.vectors) == 100
    assert text(answers["text"]) == alone("llama", [1], 3)[1:]


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([], "bad_tokens"),
        ([[1], []], "bad_tokens"),
        ([[99]], "bad_tokens"),
        ([[1] * 65], "context_exceeded"),
    ],
)
def test_wrong_inputs_are_refused(inputs: list[list[int]], code: str) -> None:
    engine = Engine(model("bert"), slots=2)
    engine.add("me", Embed("it", inputs))
    (failed,) = drain(engine)["it"]
    assert isinstance(failed, Failed)
    assert failed.code == code


def test_bert_does_not_generate() -> None:
    (failed,) = answered("bert", Generate("it", [1], 1))
    assert isinstance(failed, Failed)
    assert failed.code == "not_generative"


def test_scores_that_are_no_numbers_fail_the_request_and_nothing_else() -> None:
    broken = build(Gpt2Shape(**SIZES), seed=1)
    with torch.no_grad():
        broken.embedding.weight[7] = math.nan  # type: ignore[union-attr, operator]
    engine = Engine(broken, slots=2)
    engine.add("me", Generate("it", [7], 5))
    (failed,) = drain(engine)["it"]
    assert isinstance(failed, Failed)
    assert failed.code == "not_a_number"


def test_memory_follows_use_and_is_given_back() -> None:
    engine = Engine(build(LlamaShape(**SIZES | {"context": 4096, "kv_heads": 2}), seed=1), slots=64)
    rested = engine._cache.bytes
    for number in range(8):
        engine.add("me", Generate(str(number), [1] * 300, 1))
    drain(engine)
    grown = engine._cache.bytes
    assert rested < grown <= rested * 2 * 4
    engine.rest()
    assert engine._cache.bytes == rested
