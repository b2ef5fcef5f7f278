"""Structured output: whatever a model prefers, a finished answer has the form that was asked for."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from windlass.corpus.train_tokenizer import train_bpe
from windlass.serve.engine.grammar.compile_grammar import BadGrammar, compile_grammar, load_vocabulary
from windlass.serve.engine.grammar.token_mask import GrammarRefused, Grammars, Matcher, Outcome
from windlass.serve.engine.grammar.trial import GrammarTrial
from windlass.serve.engine.grammar.trial_worker import why_not
from windlass.serve.engine.sampler import SamplingRow, draw
from windlass.spec.protocol.wire import Generate, Grammar

MODEL_TOKENS = 420
TEXTS = [
    '{"name": "fox", "age": 12, "tags": ["a", "b"], "ok": true, "none": null} ' * 4,
    "机器学习 naïve " * 4,
]
SLOW = Grammar("regex", "a{1000000}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    train_bpe(TEXTS * 5, 400).inner.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture(scope="module")
def end(tokenizer: Tokenizer) -> int:
    return int(tokenizer.token_to_id("<|end|>"))


@pytest.fixture(scope="module")
def vocabulary(model: Path, end: int) -> LLTokenizer:
    return load_vocabulary(model, MODEL_TOKENS, [end])


@pytest.fixture(scope="module")
def grammars(model: Path, end: int) -> Iterator[Grammars]:
    made = Grammars(model, MODEL_TOKENS, [end])
    yield made
    made.close()


def settled(grammars: Grammars, grammar: Grammar) -> Outcome:
    pending = grammars.request(grammar)
    for _ in range(6000):
        outcome = pending.poll()
        if outcome != "wait":
            return outcome
        time.sleep(0.01)
    raise AssertionError("the grammar was never settled")


def matcher_of(vocabulary: LLTokenizer, grammar: Grammar) -> Matcher:
    return Matcher(compile_grammar(vocabulary, grammar), -(-MODEL_TOKENS // 32))


def answer(matcher: Matcher, tokenizer: Tokenizer, end: int, *, seed: int, most: int = 600) -> str | None:
    """Let a model that prefers nothing answer; return None if it was cut by length."""
    request = Generate("it", [0], most, seed=seed)
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    for position in range(most):
        logits_BV = rng.standard_normal((1, MODEL_TOKENS), dtype=np.float32) * 3
        drawn = draw(logits_BV, [SamplingRow(request, position, mask=matcher.mask())])
        assert drawn.numeric == [True]
        if drawn.tokens == [end]:
            return str(tokenizer.decode(tokens))
        tokens += drawn.tokens
        matcher.advance(drawn.tokens[0])
        assert matcher.failure is None
        if matcher.finished:
            return str(tokenizer.decode(tokens))
    return None


names = st.text('abcxyz é"\\', min_size=1, max_size=6)
leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b},
              st.integers(-999, 999), st.integers(0, 5000)),
    st.builds(lambda a, b: {"type": "number", "minimum": a, "maximum": a + b},
              st.integers(-99, 99), st.integers(1, 500)),
    st.builds(lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b},
              st.integers(0, 4), st.integers(0, 6)),
    st.just({"type": "string", "pattern": "^[a-f]{2,5}-[0-9]+$", "maxLength": 12}),
    st.just({"type": "string", "format": "date"}),
    st.builds(lambda values: {"enum": values},
              st.lists(names | st.integers(-9, 9) | st.booleans() | st.none(), min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value}, names | st.integers(-9, 9)),
)  # fmt: skip


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def build(properties: dict[str, Any], required: list[bool]) -> dict[str, Any]:
        wanted = [name for name, is_wanted in zip(properties, required, strict=False) if is_wanted]
        return {"type": "object", "properties": properties, "required": wanted, "additionalProperties": False}

    return st.builds(
        build, st.dictionaries(names, inner, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4)
    )


def arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, a, b: {"type": "array", "items": items, "minItems": a, "maxItems": a + b},
        inner, st.integers(0, 2), st.integers(0, 3),
    )  # fmt: skip


def either(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3))


schemas = st.recursive(leaves, lambda inner: objects(inner) | arrays(inner) | either(inner), max_leaves=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_a_finished_answer_satisfies_its_schema(
    vocabulary: LLTokenizer, tokenizer: Tokenizer, end: int, schema: dict[str, Any], seed: int
) -> None:
    matcher = matcher_of(vocabulary, Grammar("schema", json.dumps(schema)))
    text = answer(matcher, tokenizer, end, seed=seed)
    assume(text is not None)
    jsonschema.validate(json.loads(text or ""), schema)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_json_mode_writes_an_object(
    vocabulary: LLTokenizer, tokenizer: Tokenizer, end: int, seed: int
) -> None:
    text = answer(matcher_of(vocabulary, Grammar("json")), tokenizer, end, seed=seed)
    assume(text is not None)
    assert isinstance(json.loads(text or ""), dict)


@pytest.mark.parametrize(
    "pattern", [r"[0-9]{4}-[0-9]{2}", r"(yes|no)!?", r"[a-z]+@[a-z]+\.(com|org)", "机器?", r"a*"]
)
def test_a_regular_expression_is_matched_as_a_whole(
    vocabulary: LLTokenizer, tokenizer: Tokenizer, end: int, pattern: str
) -> None:
    texts = [
        answer(matcher_of(vocabulary, Grammar("regex", pattern)), tokenizer, end, seed=seed)
        for seed in range(5)
    ]
    assert all(re.fullmatch(pattern, text) for text in texts if text is not None)
    assert any(text is not None for text in texts)


@settings(max_examples=40, deadline=None)
@given(choices=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_choice_is_one_of_the_texts(
    vocabulary: LLTokenizer, tokenizer: Tokenizer, end: int, choices: list[str], seed: int
) -> None:
    matcher = matcher_of(vocabulary, Grammar("choice", json.dumps(choices)))
    assert answer(matcher, tokenizer, end, seed=seed) in choices


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("schema", '{"type": "nix"}'), "Invalid type: nix"),
        (Grammar("schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Grammar("schema", '{"oneOf": [{"type": "number"}, {"type": "integer"}]}'), "oneOf"),
        (Grammar("schema", '{"$ref": "http://127.0.0.1:1/x"}'), "not present"),
        (Grammar("schema", '{"uniqueItems": true, "x-guidance": {"lenient": true}}'), "uniqueItems"),
        (Grammar("schema", "{"), "not JSON"),
        (Grammar("schema", "[" * 100_000), "not JSON"),
        (Grammar("schema", "[]"), "must be a JSON Schema"),
        (Grammar("regex", "("), "unclosed group"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("regex", "(" * 20_000 + ")" * 20_000), "nested"),
        (Grammar("choice", "[]"), "list of non-empty strings"),
        (Grammar("choice", '["a", 1]'), "list of non-empty strings"),
        (Grammar("regex", "x" * (1 << 20)), "larger than"),
    ],
)  # fmt: skip
def test_a_bad_grammar_is_refused_with_its_reason(
    vocabulary: LLTokenizer, grammar: Grammar, reason: str
) -> None:
    found = why_not(vocabulary, grammar)
    assert found is not None
    assert reason in found
    assert "\n" not in found


@pytest.mark.slow
def test_a_grammar_whose_automaton_explodes_is_refused(vocabulary: LLTokenizer) -> None:
    assert "too many expressions" in (why_not(vocabulary, SLOW) or "")


def test_an_open_answer_may_end_and_a_complete_one_is_finished(vocabulary: LLTokenizer, end: int) -> None:
    def may_end(matcher: Matcher) -> bool:
        return bool(matcher.mask()[end // 32] >> (end % 32) & 1)

    matcher = matcher_of(vocabulary, Grammar("regex", "ab?"))
    assert not may_end(matcher)
    matcher.advance(vocabulary.greedy_tokenize("a")[0])
    assert may_end(matcher)
    assert not matcher.finished
    matcher.advance(vocabulary.greedy_tokenize("b")[0])
    assert matcher.finished


def test_tokens_that_the_tokenizer_lacks_are_never_allowed(vocabulary: LLTokenizer) -> None:
    bits = np.unpackbits(
        matcher_of(vocabulary, Grammar("regex", ".*")).mask().view(np.uint8), bitorder="little"
    )
    assert not bits[400:].any()


def test_a_copy_goes_its_own_way_and_a_rollback_returns(vocabulary: LLTokenizer) -> None:
    a, b = (vocabulary.greedy_tokenize(text)[0] for text in "ab")
    matcher = matcher_of(vocabulary, Grammar("regex", "(aaa|bbb)"))
    before = matcher.mask()
    other = matcher.copy()
    other.advance(b)
    np.testing.assert_array_equal(matcher.mask(), before)
    matcher.advance(a)
    matcher.advance(a)
    assert matcher.accepts([a, b]) == 1
    assert other.accepts([b, b, a]) == 2
    matcher.rollback(2)
    np.testing.assert_array_equal(matcher.mask(), before)


def test_another_engine_resumes_where_one_stopped(vocabulary: LLTokenizer) -> None:
    grammar = Grammar("schema", '{"type": "array", "items": {"type": "integer"}}')
    first, second = matcher_of(vocabulary, grammar), matcher_of(vocabulary, grammar)
    tokens = vocabulary.greedy_tokenize("[1,22,")
    for token in tokens:
        first.advance(token)
    second.resume(tokens)
    np.testing.assert_array_equal(first.mask(), second.mask())


def test_a_forbidden_token_is_a_failure_that_allows_nothing(vocabulary: LLTokenizer) -> None:
    matcher = matcher_of(vocabulary, Grammar("regex", "a+"))
    matcher.advance(vocabulary.greedy_tokenize("b")[0])
    assert matcher.failure is not None
    assert not matcher.mask().any()


def test_a_grammar_is_compiled_once_and_given_to_each_as_a_copy(grammars: Grammars) -> None:
    grammar = Grammar("choice", '["aa", "ab"]')
    first = settled(grammars, grammar)
    assert isinstance(first, Matcher)
    first.advance(int(np.flatnonzero(np.unpackbits(first.mask().view(np.uint8), bitorder="little"))[0]))
    second = grammars.request(grammar).poll()
    assert isinstance(second, Matcher)
    assert not np.array_equal(first.mask(), second.mask())


def test_a_refusal_harms_no_other_grammar(grammars: Grammars) -> None:
    outcome = settled(grammars, Grammar("regex", "("))
    assert isinstance(outcome, GrammarRefused)
    assert "unclosed group" in outcome.reason
    assert isinstance(settled(grammars, Grammar("regex", "a|b")), Matcher)


def test_a_grammar_that_takes_too_long_is_killed_and_the_next_one_served(model: Path, end: int) -> None:
    trial = GrammarTrial(model, MODEL_TOKENS, [end], patience_s=0.0)
    assert "longer than 0 s" in (trial.why_not(SLOW) or "")
    assert trial.process is None
    patient = GrammarTrial(model, MODEL_TOKENS, [end])
    assert patient.why_not(Grammar("json")) is None
    patient.close()


def test_a_process_that_dies_of_a_grammar_is_replaced(model: Path, end: int) -> None:
    trial = GrammarTrial(model, MODEL_TOKENS, [end])
    assert trial.why_not(Grammar("json")) is None
    assert trial.process is not None
    os.kill(trial.process, signal.SIGKILL)
    assert "memory" in (trial.why_not(Grammar("regex", "a")) or "")
    assert trial.why_not(Grammar("regex", "a")) is None
    trial.close()


@pytest.mark.slow
def test_an_automaton_that_reached_its_largest_size_is_compiled_anew(grammars: Grammars) -> None:
    grammar = Grammar("schema", '{"type": "string", "minLength": 100000}')
    rng = np.random.default_rng(0)
    spent = settled(grammars, grammar)
    assert isinstance(spent, Matcher)
    while spent.failure is None:
        allowed = np.flatnonzero(np.unpackbits(spent.mask().view(np.uint8), bitorder="little"))
        spent.advance(int(rng.choice(allowed)) if len(allowed) else 0)
    assert "too large" in spent.failure
    fresh = settled(grammars, grammar)
    assert isinstance(fresh, Matcher)
    assert fresh.mask().any()


def test_what_ends_when_idle_starts_again(model: Path, end: int) -> None:
    impatient = Grammars(model, MODEL_TOKENS, [end], idle_s=0.0)
    for pattern in ("a", "b", "c"):
        assert isinstance(settled(impatient, Grammar("regex", pattern)), Matcher)
    impatient.close()


def test_what_another_engine_has_written_by_is_compiled_without_a_trial(model: Path, end: int) -> None:
    grammars = Grammars(model, MODEL_TOKENS, [end])
    pending = grammars.request(Grammar("regex", "[a-z]{3}"), tried=True)
    while pending.poll() == "wait":
        time.sleep(0.001)
    assert isinstance(pending.poll(), Matcher)
    assert grammars.trial_process is None
    assert isinstance(settled(grammars, Grammar("regex", "[0-9]{3}")), Matcher)
    assert grammars.trial_process is not None
    grammars.close()


def test_a_model_without_tokenizer_says_so(tmp_path: Path) -> None:
    grammars = Grammars(tmp_path, MODEL_TOKENS, [0])
    outcome = grammars.request(Grammar("json")).poll()
    assert isinstance(outcome, GrammarRefused)
    assert "no tokenizer" in outcome.reason
    grammars.close()


def test_a_tokenizer_without_an_end_keeps_all_its_tokens_for_text(tmp_path: Path) -> None:
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    plain.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    plain.save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path, 256, [])
    matcher = Matcher(compile_grammar(vocabulary, Grammar("regex", "!+")), -(-vocabulary.vocab_size // 32))
    assert plain.token_to_id("!") == 0
    matcher.advance(0)
    bits = np.unpackbits(matcher.mask().view(np.uint8), count=256, bitorder="little")
    assert np.flatnonzero(bits).tolist() == [0]
    assert not matcher.finished


def test_a_tokenizer_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}')
    with pytest.raises(BadGrammar, match="cannot use this model's tokenizer"):
        load_vocabulary(tmp_path, 10, [0])
