"""Admission by time and by the ladder, without HTTP: the gate itself, and engines that are only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from windlass.http.errors import ApiError
from windlass.serve.gateway.caller import Caller
from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.gateway.limits.request_cost import EngineCapacity, RequestCost
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.limits import Limits, ServeLimits

WISH = RequestCost(model="m", answers=1, prompt_tokens=100, max_tokens=20)
ADA = Caller(key="k1", tenant="ada", scopes=frozenset({"use"}))
SLOTS = 4


def gate(**limits: object) -> AdmissionController:
    return AdmissionController(
        ServeLimits(**limits), None, lambda _: EngineCapacity(SLOTS), Metrics(), holder="g"
    )  # type: ignore[arg-type]


def run(work: Callable[[AdmissionController], Awaitable[None]], given: AdmissionController) -> None:
    """Do the work while the gate exchanges beside it."""

    async def both() -> None:
        beside = asyncio.create_task(given.run())
        try:
            await work(given)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    asyncio.run(both())


async def code_of(given: AdmissionController, wish: RequestCost = WISH, caller: Caller = ADA) -> str:
    with pytest.raises(ApiError) as refused:
        await given.admit(caller, wish)
    return refused.value.code


def slow(given: AdmissionController) -> None:
    """Have the gate believe that an answer holds its slot for 8 s."""
    given._lines["m"].pace.ended(WISH, after_first_s=8.0, written=20)


def test_what_finds_no_slot_in_time_is_refused_and_an_end_makes_room() -> None:
    async def work(given: AdmissionController) -> None:
        slow(given)
        running = [await given.admit(ADA, WISH) for _ in range(SLOTS)]
        for each in running:
            each.began()
        assert await code_of(given) == "queue_full"
        running[0].settle(120)
        await given.admit(ADA, WISH)

    run(work, gate(wait=1.0))


def test_nobody_is_refused_for_time_while_no_engine_is_connected() -> None:
    rooms = [EngineCapacity(SLOTS)]
    given = AdmissionController(ServeLimits(wait=1.0), None, lambda _: rooms[-1], Metrics(), holder="g")

    async def work(given: AdmissionController) -> None:
        slow(given)
        for _ in range(SLOTS):
            (await given.admit(ADA, WISH)).began()
        assert await code_of(given) == "queue_full"
        rooms.append(EngineCapacity(0))
        await given.admit(ADA, WISH)

    run(work, given)


def test_many_refusals_take_the_ladder_up_and_leave_out_what_it_says() -> None:
    async def work(given: AdmissionController) -> None:
        slow(given)
        for _ in range(SLOTS):
            (await given.admit(ADA, WISH)).began()
        for _ in range(40):
            assert await code_of(given) == "queue_full"
        given.step(asyncio.get_running_loop().time())
        assert given.level == 3
        assert await code_of(given, RequestCost("m", 1, 10, 10, priority=-1)) == "overloaded"
        assert await code_of(given, RequestCost("m", 2, 10, 10)) == "overloaded"
        assert await code_of(given) == "queue_full"

    run(work, gate(wait=1.0))


def test_a_refused_request_leaves_nothing_behind() -> None:
    async def work(given: AdmissionController) -> None:
        first = await given.admit(ADA, WISH)
        assert await code_of(given) == "too_many_concurrent"
        assert (given._lines["m"].answers, given._lines["m"].unread) == (1, 1)
        first.settle(0)
        assert (given._lines["m"].answers, given._lines["m"].unread) == (0, 0)
        await given.admit(ADA, WISH)

    run(work, gate(all=Limits(concurrent=1)))


def test_the_queue_counts_only_requests_without_a_first_token() -> None:
    async def work(given: AdmissionController) -> None:
        first = await given.admit(ADA, WISH)
        assert await code_of(given) == "queue_full"
        first.began()
        await given.admit(ADA, WISH)

    run(work, gate(all=Limits(queue=1)))


def test_one_tenant_at_its_limit_does_not_hold_up_another() -> None:
    async def work(given: AdmissionController) -> None:
        await given.admit(ADA, WISH)
        assert await code_of(given) == "rate_limited"
        await given.admit(Caller(key="k2", tenant="bob", scopes=ADA.scopes), WISH)

    run(work, gate(tenant=Limits(requests_per_second=0.01, burst=1)))


def test_a_flood_of_refusals_waits_for_nothing() -> None:
    async def work(given: AdmissionController) -> None:
        await given.admit(ADA, WISH)
        await code_of(given)
        for _ in range(200):
            refusing = given.admit(ADA, WISH)
            with pytest.raises(ApiError):
                refusing.send(None)  # one step: a coroutine that waited for anything would not end in it

    run(work, gate(all=Limits(requests_per_second=0.01, burst=1)))


def test_long_prompts_of_one_tenant_do_not_use_up_the_time_of_another() -> None:
    bob = Caller(key="k2", tenant="bob", scopes=ADA.scopes)
    long, short = RequestCost("m", 1, 5000, 20), RequestCost("m", 1, 10, 20)

    async def work(given: AdmissionController) -> None:
        line = given._lines["m"]
        line.pace.began(1.0, 1000 - 16)  # a thousand tokens a second
        await given.admit(ADA, long)
        assert await code_of(given, short) == "queue_full"
        theirs = await given.admit(bob, short)
        assert await code_of(given, long, bob) == "queue_full"
        theirs.began()
        assert line.unread_of == {"ada": 5000}

    run(work, gate(wait=2.0))
