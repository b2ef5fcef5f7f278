"""Drafts: where guesses come from, when they pay, and that they change nothing but the time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.engine import sequence, speculative
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import Span
from windlass.serve.engine.sequence import Sequence
from windlass.serve.engine.speculative import GAIN, LONGEST, StepCosts, Trigrams, decide, expected, look_up
from windlass.serve.engine.step import Answer, Engine
from windlass.spec.protocol.wire import Generate, Tokens

Engines = Callable[..., Engine]
Drain = Callable[[Engine], dict[str, list[Answer]]]


def a_sequence(tokens: list[int], max_tokens: int = 50, **options: object) -> Sequence:
    return sequence.begin("me", Generate("it", tokens, max_tokens, **options), 0)  # type: ignore[arg-type]


def test_what_followed_the_same_three_tokens_is_guessed() -> None:
    assert look_up(a_sequence([1, 2, 3, 4, 5, 9, 1, 2, 3]), 4) == [4, 5, 9, 1]


def test_the_latest_occurrence_is_believed() -> None:
    assert look_up(a_sequence([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]), 1) == [5]


def test_nothing_is_guessed_where_nothing_was_repeated() -> None:
    assert look_up(a_sequence([1, 2, 3, 4, 5]), 4) == []
    assert look_up(a_sequence([1, 1]), 4) == []


@given(st.lists(st.integers(0, 2), min_size=3, max_size=60), st.integers(1, 7))
def test_looking_up_after_every_token_finds_what_a_search_finds(tokens: list[int], max_tokens: int) -> None:
    one = a_sequence(tokens[:3])
    for token in tokens[3:]:
        look_up(one, max_tokens)
        one.tokens.append(token)
    seed = tokens[-3:]
    places = [end for end in range(3, len(tokens)) if tokens[end - 3 : end] == seed]
    followed = tokens[places[-1] :] if places else []
    assert look_up(one, max_tokens) == [
        followed[i % len(followed)] for i in range(max_tokens if places else 0)
    ]


def test_a_table_remembers_what_was_generated_for_the_same_tenant() -> None:
    trigrams = Trigrams()
    trigrams.learn("mine", [1, 2, 3, 4])
    assert trigrams.guess("mine", [9, 1, 2], 5) == [3, 4]
    assert trigrams.guess("yours", [9, 1, 2], 5) == []
    assert trigrams.guess("mine", [2], 5) == []


def test_a_table_that_goes_in_circles_is_followed_only_so_far() -> None:
    trigrams = Trigrams()
    trigrams.learn("", [1, 2, 1, 2, 1])
    assert trigrams.guess("", [1, 2], 5) == [1, 2, 1, 2, 1]


def test_a_full_table_forgets_instead_of_growing_and_never_guesses_what_it_did_not_see() -> None:
    trigrams = Trigrams(places=8)
    texts = [[n, n + 1, n + 2] for n in range(0, 300, 3)]
    for text in texts:
        trigrams.learn("", text)
    known = [text for text in texts if trigrams.guess("", text[:2], 1)]
    assert 1 <= len(known) <= 8
    assert all(trigrams.guess("", text[:2], 1) == text[2:] for text in known)
    assert trigrams.guess("", texts[-1][:2], 1) == texts[-1][2:]


def test_the_longest_unused_tenant_gives_way_and_leaves_nothing_behind() -> None:
    trigrams = Trigrams(tenants=2)
    trigrams.learn("first", [1, 2, 3])
    trigrams.learn("second", [1, 2, 4])
    trigrams.learn("first", [5, 6, 7])
    trigrams.learn("third", [8, 9, 10])
    assert trigrams.guess("second", [1, 2], 1) == []
    assert trigrams.guess("first", [1, 2], 1) == [3]
    assert trigrams.guess("third", [1, 2], 1) == []
    assert trigrams.guess("third", [8, 9], 1) == [10]


def test_a_draft_never_reaches_beyond_what_was_requested() -> None:
    repeated = list(range(9)) * 3
    for max_tokens in range(1, 12):
        found = speculative.draft(a_sequence(repeated, max_tokens), Trigrams())
        assert len(found) == min(LONGEST, max_tokens - 1)


@pytest.mark.parametrize(
    "wish",
    [{"presence_penalty": 1.0}, {"repetition_penalty": 1.1}, {"logprobs": 2}, {"score_prompt": True}],
    ids=lambda wish: next(iter(wish)),
)
def test_nothing_is_guessed_for_those_whose_scores_depend_on_more(wish: dict[str, object]) -> None:
    assert speculative.draft(a_sequence([1, 2, 3] * 5, **wish), Trigrams()) == []


@given(st.floats(0.0, 1.0), st.integers(1, 20))
def test_the_right_tokens_expected_are_the_sum_over_lengths(acceptance: float, length: int) -> None:
    assert expected(acceptance, length) == pytest.approx(
        sum(acceptance**n for n in range(1, length + 1)), abs=1e-9
    )


def test_times_lie_on_straight_lines_between_those_measured() -> None:
    costs = StepCosts({1: 1.0, 2: 2.0, 4: 3.0})
    assert [costs.seconds(rows) for rows in (1, 2, 3, 4, 6)] == [1.0, 2.0, 2.5, 3.0, 4.0]
    assert StepCosts({1: 0.5}).seconds(4) == 2.0


def test_every_power_of_two_up_to_the_most_is_measured() -> None:
    asked: list[int] = []
    StepCosts.measured(asked.append, 20, repeats=2)
    assert Counter(asked) == dict.fromkeys((1, 2, 4, 8, 16), 3)


def test_drafts_are_used_where_rows_are_cheap_and_guesses_right() -> None:
    free, dear = StepCosts({1: 1.0, 64: 1.0}), StepCosts({1: 1.0, 64: 64.0})
    assert decide(free, 1, [(7, 0.9)])
    assert not decide(free, 1, [(7, 0.0)])
    assert not decide(dear, 1, [(7, 0.9)])
    assert not decide(free, 1, [])


@given(st.integers(1, 8), st.integers(1, 7), st.floats(0.01, 0.99), st.floats(0.0, 3.0))
def test_drafts_must_be_quicker_by_a_margin(rows: int, length: int, acceptance: float, slope: float) -> None:
    costs = StepCosts({1: 1.0, 101: 1.0 + 100 * slope})
    plain = rows / costs.seconds(rows)
    drafted = (rows + expected(acceptance, length)) / costs.seconds(rows + length)
    assert decide(costs, rows, [(length, acceptance)]) == (drafted > GAIN * plain)


def test_luck_follows_what_was_right_lately() -> None:
    one = a_sequence([1])
    for _ in range(60):
        speculative.learn(one, 4, 4)
    assert one.acceptance > 0.99
    for _ in range(60):
        speculative.learn(one, 4, 5)
    assert one.acceptance < 0.01


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_drafts_save_steps_and_change_nothing(temperature: float, engine: Engines, drain: Drain) -> None:
    """A bias makes the model repeat itself, as texts do that drafts are for."""
    bias = {4: 6.0, 5: 6.0}
    plain, drafted = engine(), engine(drafts="forced")
    for one in (plain, drafted):
        for number in range(3):
            request = Generate(
                str(number), [4, 5] * 10, 60, temperature=temperature, seed=number, logit_bias=bias
            )
            one.add("me", request)
    assert drain(plain) == drain(drafted)
    assert drafted.steps < plain.steps


def test_what_is_not_worth_computing_is_still_learned_from(engine: Engines) -> None:
    one = engine()
    one._costs = StepCosts({1: 1.0, 64: 64.0})
    one.add("me", Generate("it", [4, 5] * 10, 60, temperature=0.0, logit_bias={4: 99.0}))
    (sequence,) = one._scheduler
    while not one.is_idle:
        one.step()
    assert one.steps == 60
    assert sequence.acceptance > 0.9


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_drafts_do_not_change_how_often_a_text_is_drawn(
    temperature: float, engine: Engines, drain: Drain, runner: Callable[..., NativeRunner]
) -> None:
    """Chi-square over the first three tokens of 1,500 seeds, against the model's own probabilities."""
    prompt, draws = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3], 1500
    one = engine("letters", drafts="forced")
    found: Counter[tuple[int, ...]] = Counter()
    for first in range(0, draws, 2):
        for seed in range(first, first + 2):
            one.add("me", Generate(str(seed), prompt, 4, temperature=temperature, seed=seed))
        for answers in drain(one).values():
            tokens = [t for message in answers if isinstance(message, Tokens) for t in message.tokens]
            found[tuple(tokens[:3])] += 1
    assert one.steps < draws / 2 * 4  # some guesses were right
    wanted = {
        text: draws * chance for text, chance in chances(runner("letters"), prompt, 3, temperature).items()
    }
    assert chi_square(found, wanted) < 1.0


def chances(
    one: NativeRunner, prompt: list[int], length: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """Return the probability of every continuation, by the scores of the runner."""
    tables = np.arange(4, dtype=np.int32)[None]
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in found.items():
            scores_V = one.run([Span(0, 0, [*prompt, *text])], tables).logits_BV[0].astype(np.float64)
            weights_V = np.exp((scores_V - scores_V.max()) / temperature)
            for token, share in enumerate((weights_V / weights_V.sum()).tolist()):
                longer[*text, token] = chance * share
        found = longer
    return found


def chi_square(found: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """Return the statistic over its limit at one in a million, rare texts taken together as one."""
    common = [text for text, count in wanted.items() if count >= 5]
    rare = sum(found.values()) - sum(found[text] for text in common)
    rest = sum(wanted.values()) - sum(wanted[text] for text in common)
    pairs = [(found[text], wanted[text]) for text in common] + ([(rare, rest)] if rest >= 5 else [])
    statistic = sum((got - want) ** 2 / want for got, want in pairs)
    freedom = len(pairs) - 1
    assert freedom >= 5
    # Wilson and Hilferty 1931: the cube root of chi-square over its freedom is nearly normal.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3
    return statistic / limit


def test_the_chi_square_would_see_a_small_difference() -> None:
    chance = random.Random(1)
    wanted = {(token,): 150.0 for token in range(10)}
    fair = Counter((chance.randrange(10),) for _ in range(1500))
    skewed = Counter((min(chance.randrange(11), 9),) for _ in range(1500))
    assert chi_square(fair, wanted) < 1.0 < chi_square(skewed, wanted)
