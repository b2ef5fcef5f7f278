"""The pure core, driven by scripts: no socket, no clock, no chance."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.sdk import (
    AnswerDiffers,
    Circuit,
    Completion,
    DeadlinePassed,
    Retries,
    ServerSite,
    ServiceFailed,
)
from windlass.sdk.answers import InferenceCalls
from windlass.sdk.delivery import Delivery
from windlass.sdk.effects import Broken, Call, Close, Draw, Give, Look, Open, Pause, ReadMore, ReplyStarted
from windlass.sdk.events import EventReader, ServerSentEvent
from windlass.sdk.exchange import RequestRunner
from windlass.sdk.failures import ErrorDetails, Unreachable, failure_of
from windlass.sdk.retries import decide, wait_after
from windlass.sdk.sites import SiteMemory, answered, as_sites, busy, call_started, failed, order, state

SHARES = st.floats(0, 1, exclude_max=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


class Script:
    """A fake world for calls: a server that always gives one answer, over connections that break."""

    def __init__(self, answer: bytes, cuts: list[int], step: int) -> None:
        self.answer, self.cuts, self.step = answer, list(cuts), step
        self.now = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self._left = b""
        self._breaks = False

    def do(self, effect: Any) -> Any:
        match effect:
            case Open(url, request):
                self.urls.append(url)
                self.bodies.append(dict(request.body or {}))
                cut = self.cuts.pop(0) if self.cuts else None
                self._left, self._breaks = self.answer[:cut], cut is not None and cut < len(self.answer)
                return ReplyStarted(200, {}, url)
            case ReadMore():
                part, self._left = self._left[: self.step], self._left[self.step :]
                return part or (Broken("the connection broke", sent=True) if self._breaks else b"")
            case Pause(seconds):
                self.now += seconds
            case Look():
                return self.now
            case Draw():
                return 0
            case Close():
                pass
        return None

    def run(self, call: Call[Any]) -> Iterator[str]:
        outcome = None
        while True:
            try:
                effect = call.send(outcome)
            except StopIteration as end:
                self.result = end.value
                return
            if isinstance(effect, Give):
                outcome = None
                yield effect.piece
            else:
                outcome = self.do(effect)


def answers(*urls: str, retries: Retries | None = None) -> InferenceCalls:
    exchange = RequestRunner(
        as_sites(urls or ("http://a",)),
        headers={},
        retries=retries or Retries(tries=1000),
        circuit=Circuit(),
        absent="",
    )
    return InferenceCalls(exchange, model="tiny", deadline=None)


def streamed(pieces: list[str]) -> bytes:
    """Write pieces as the gateway does."""
    chunks: list[dict[str, Any]] = [
        {"id": "x", "model": "tiny@3", "choices": [{"index": 0, "text": piece, "finish_reason": None}]}
        for piece in pieces
    ]
    chunks.append(
        {"id": "x", "model": "tiny@3", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    )
    chunks.append(
        {
            "id": "x",
            "model": "tiny@3",
            "choices": [],
            "usage": {"prompt_tokens": 1, "completion_tokens": len(pieces)},
        }
    )
    frames = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in chunks]
    return b": waiting\n\n".join(frames) + b"data: [DONE]\n\n"


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(TEXTS, max_size=8),
    cuts=st.lists(st.integers(0, 2500), max_size=6),
    step=st.integers(1, 400),
    sites=st.integers(1, 3),
)
def test_wherever_a_stream_is_cut_the_joined_text_is_the_undisturbed_one(
    pieces: list[str], cuts: list[int], step: int, sites: int
) -> None:
    script = Script(streamed(pieces), cuts, step)
    core = answers(*(f"http://{name}" for name in "abc"[:sites]))
    given_out = list(script.run(core.stream("once").call))
    assert "".join(given_out) == "".join(pieces)
    result: Completion = script.result
    assert (result.text, result.finish, result.completion_tokens) == ("".join(pieces), "stop", len(pieces))
    assert result.resumed == len(script.urls) - 1
    assert len({ask["seed"] for ask in script.bodies}) == 1


def test_the_version_that_began_an_answer_is_retried() -> None:
    whole = streamed(["once", " upon"])
    script = Script(whole, [len(whole) // 3, 10], 50)
    assert "".join(script.run(answers().stream("x").call)) == "once upon"
    assert [ask["model"] for ask in script.bodies] == ["tiny", "tiny@3", "tiny@3"]


def test_a_stream_that_never_gets_further_is_given_up() -> None:
    script = Script(streamed(["once", " upon"]), [150] * 99, 50)
    with pytest.raises(Unreachable, match="broke"):
        list(script.run(answers(retries=Retries(tries=4)).stream("x").call))
    assert len(script.urls) <= 5


def test_progress_makes_tries_count_anew() -> None:
    pieces = [f"word{number} " for number in range(12)]
    whole = streamed(pieces)
    cuts = [len(whole) * number // 14 for number in range(1, 14)]
    script = Script(whole, cuts, 20)
    assert "".join(script.run(answers(retries=Retries(tries=3)).stream("x").call)) == "".join(pieces)


def test_an_answer_that_becomes_shorter_is_noticed() -> None:
    delivery = Delivery()
    assert delivery.push("once upon") == "once upon"
    delivery.again()
    assert delivery.push("on") == ""
    with pytest.raises(AnswerDiffers):
        delivery.end()


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=5), st.lists(st.integers(0, 200), max_size=5))
def test_a_delivery_gives_every_character_once(pieces: list[str], breaks: list[int]) -> None:
    whole, delivery, given_out = "".join(pieces), Delivery(), ""
    for end in breaks:
        for start in range(0, min(end, len(whole)), 7):
            given_out += delivery.push(whole[start : min(start + 7, end, len(whole))])
        delivery.again()
    for character in whole:
        given_out += delivery.push(character)
    delivery.end()
    assert given_out == whole == delivery.text


EVENTS = st.lists(
    st.builds(
        ServerSentEvent,
        data=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")),
        name=st.sampled_from(["message", "end"]),
        id=st.sampled_from(["1", "22"]),
    ),
    max_size=5,
)


@settings(deadline=None)
@given(EVENTS, st.lists(st.integers(0, 300)), st.sampled_from(["\n", "\r\n", "\r"]))
def test_events_are_read_however_their_bytes_are_cut(
    events: list[ServerSentEvent], cuts: list[int], end: str
) -> None:
    lines = [
        f"event: {event.name}{end}id: {event.id}{end}data: {event.data}{end}: note{end}{end}"
        for event in events
    ]
    data = "".join(lines).encode() + b"data: torn"
    reader, found = EventReader(), []
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, stop in pairwise(places):
        found += reader.push(data[start:stop])
    assert found == events


def test_events_of_several_lines_and_with_a_mark_at_the_beginning() -> None:
    assert EventReader().push("\ufeffdata: a\ndata:b\n\ndata\n\nretry: 3\n\n".encode()) == [
        ServerSentEvent("a\nb"),
        ServerSentEvent(""),
    ]


def busy_failure(code: str, status: int, retry_after: str | None = None) -> Any:
    headers = {} if retry_after is None else {"retry-after": retry_after}
    body = json.dumps({"error": {"code": code, "message": "x"}}).encode()
    return failure_of(status, headers, body, "http://a")


@settings(deadline=None)
@given(st.integers(1, 30), SHARES, st.one_of(st.none(), st.integers(1, 100)))
def test_waits_grow_within_bounds_and_never_undercut_the_server(
    tried: int, draw: float, retry_after: int | None
) -> None:
    policy = Retries()
    failure = busy_failure("overloaded", 429, None if retry_after is None else str(retry_after))
    wait_s = wait_after(policy, failure, tried, draw)
    assert wait_s >= (retry_after or 0)
    assert wait_s <= max(policy.max_wait_s, (retry_after or 0) + policy.first_wait_s)
    again = decide(policy, failure, tried=tried, left_s=5.0, draw=draw)
    assert again is None or again < 5.0


@pytest.mark.parametrize(
    ("code", "status", "again"),
    [
        ("rate_limited", 429, True),
        ("queue_full", 429, True),
        ("engine_unavailable", 503, True),
        ("engine_failed", 500, True),
        ("idempotency_in_progress", 409, True),
        ("poisonous", 500, False),
        ("invalid_value", 400, False),
        ("unauthorized", 401, False),
        ("model_not_found", 404, False),
        ("deadline_exceeded", 408, False),
        ("deadline_unreachable", 429, False),
        ("idempotency_mismatch", 422, False),
    ],
)
def test_only_what_passes_by_itself_is_tried_again(code: str, status: int, again: bool) -> None:
    decided = decide(Retries(), busy_failure(code, status), tried=1, left_s=None, draw=0.5)
    assert (decided is not None) == again


def test_what_changes_something_is_sent_again_only_if_it_did_not_arrive() -> None:
    def again(failure: Any) -> bool:
        return decide(Retries(), failure, tried=1, left_s=None, draw=0, repeats=False) is not None

    assert again(Unreachable("x", sent=False))
    assert not again(Unreachable("x", sent=True))
    assert not again(busy_failure("internal", 500))
    assert again(busy_failure("in_use", 409))


def test_a_server_that_asks_for_too_much_patience_is_not_waited_for() -> None:
    failure = busy_failure("quota_exhausted", 429, "40000")
    assert decide(Retries(), failure, tried=1, left_s=None, draw=0) is None
    assert decide(Retries(), failure, tried=1, left_s=None, draw=0, elsewhere=True) == 0.0


def test_a_proxy_in_between_is_distinguished_from_a_server_of_ours() -> None:
    failure = failure_of(502, {}, b"<html>Bad Gateway</html>", "http://a")
    assert isinstance(failure, ServiceFailed)
    assert "is not a Windlass server" in failure.message
    assert decide(Retries(), failure, tried=1, left_s=None, draw=0) is not None


def test_the_server_gets_what_is_left_of_the_deadline() -> None:
    deadlines: list[str | None] = []

    class Slow(Script):
        def do(self, effect: Any) -> Any:
            if isinstance(effect, Open):
                deadlines.append(effect.headers.get("x-deadline-ms"))
                assert effect.silence_s == min(25, 20 - self.now)
            return super().do(effect)

    script = Slow(streamed(["once", " upon"]), [150, 170], 50)
    list(script.run(answers().stream("x", deadline=20).call))
    assert deadlines[0] == "20000"
    assert [int(ms or 0) for ms in deadlines] == sorted((int(ms or 0) for ms in deadlines), reverse=True)
    assert int(deadlines[-1] or 0) == round((20 - script.now) * 1000) < 20000


def test_a_server_that_has_no_time_left_ends_a_call() -> None:
    class Slow(Script):
        def do(self, effect: Any) -> Any:
            if isinstance(effect, ReadMore):
                self.now += 6
            return super().do(effect)

    script = Slow(streamed(["once"] * 100), [], 30)
    core = answers()
    with pytest.raises(DeadlinePassed, match="deadline"):
        list(script.run(core.stream("x", deadline=20).call))
    assert script.now <= 26


def test_two_calls_at_once_may_both_learn_that_a_server_keeps_no_answers() -> None:
    core = answers()
    refusal = json.dumps({"error": {"code": "invalid_header", "message": "no database"}}).encode()
    answer = {"id": "x", "model": "m", "choices": [{"text": "yes", "finish_reason": "stop"}]}
    body = json.dumps(answer | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()

    def reach(call: Call[Any], outcome: Any) -> Any:
        """Go on to the next thing that the network has to do."""
        effect = call.send(outcome)
        while isinstance(effect, Look | Draw | Close):
            effect = call.send(0.0 if isinstance(effect, Look) else 0)
        return effect

    calls = [core.complete("x"), core.complete("y")]
    opens = [reach(call, None) for call in calls]
    assert all("idempotency-key" in effect.headers for effect in opens)
    for call in calls:
        reach(call, ReplyStarted(400, {}, "http://a"))
        reach(call, refusal)
        again = reach(call, b"")
        assert "idempotency-key" not in again.headers
        reach(call, ReplyStarted(200, {}, "http://a"))
        reach(call, body)
        with pytest.raises(StopIteration) as ended:
            reach(call, b"")
        assert ended.value.value.text == "yes"


A, B, C = ServerSite("http://a"), ServerSite("http://b"), ServerSite("http://c", rank=1)


def test_bare_addresses_are_preferred_in_their_order() -> None:
    assert as_sites(["http://a/", "http://b"]) == [ServerSite("http://a", 0), ServerSite("http://b", 1)]


@settings(deadline=None)
@given(st.lists(SHARES, min_size=3, max_size=3))
def test_a_lower_rank_always_goes_first(draws: list[float]) -> None:
    assert order([C, A, B], {}, Circuit(), now=0, draws=draws)[2] == C


def test_weights_divide_the_calls_within_a_rank() -> None:
    import random

    source = random.Random(1)
    sites = [ServerSite("http://a", weight=3), ServerSite("http://b", weight=1)]
    first = Counter(
        order(sites, {}, Circuit(), now=0, draws=[source.random(), source.random()])[0].url
        for _ in range(4000)
    )
    assert first["http://a"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_site_that_fails_rests_and_is_then_tried_by_one_call() -> None:
    circuit, health = Circuit(trip=2, first_rest_s=2, probe_s=30), SiteMemory()
    health = failed(health, circuit, 10)
    assert state(health, circuit, 10) == "well"
    health = failed(health, circuit, 10)
    assert state(health, circuit, 11.9) == "resting"
    assert state(health, circuit, 12) == "probe"
    tried = call_started(health, circuit, 12)
    assert state(tried, circuit, 13) == "resting", "somebody tries it already"
    assert state(tried, circuit, 42) == "probe", "who tried it may be gone"
    assert state(answered(tried), circuit, 13) == "well"
    assert failed(tried, circuit, 13).rests_until == 13 + 4, "it rests longer each time"


@settings(deadline=None)
@given(st.integers(0, 200), st.floats(0, 1e6))
def test_no_site_rests_longer_than_the_bound(failures: int, now: float) -> None:
    circuit, health = Circuit(), SiteMemory()
    for _ in range(failures):
        health = failed(health, circuit, now)
    assert health.rests_until <= now + circuit.max_rest_s or math.isinf(health.rests_until)


def test_a_busy_or_resting_site_is_tried_last() -> None:
    circuit = Circuit(trip=1)
    known = {"http://a": failed(SiteMemory(), circuit, 0), "http://b": busy(SiteMemory(), 0, 5)}
    found = order([A, B, C], known, circuit, now=1, draws=[0.1, 0.2, 0.3])
    assert [site.url for site in found] == ["http://c", "http://b", "http://a"]


def test_what_an_error_event_reports_is_all_there() -> None:
    from windlass.sdk.failures import failure_from_body

    failure = failure_from_body(
        {"code": "engine_failed", "message": "no", "doc_url": "/errors/engine_failed", "request_id": "7"},
        ErrorDetails(),
        "http://a",
    )
    assert (failure.doc_url, failure.request_id) == ("http://a/errors/engine_failed", "7")
