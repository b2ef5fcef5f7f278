"""Admission by time and brown-out level, without HTTP: the controller itself, with counted engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from windlass.http.errors import ApiError
from windlass.serve.gateway.caller import Caller
from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.gateway.limits.request_cost import EngineCapacity, RequestCost
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.limits import Limits, ServeLimits

COST = RequestCost(model="m", answers=1, prompt_tokens=100, max_tokens=20)
ADA = Caller(key="k1", tenant="ada", scopes=frozenset({"use"}))
SLOTS = 4


@dataclass
class CountedEngines:
    """Engines of which a test says how many slots they have and how many answers they are making."""

    slots: int = SLOTS
    answers: int = 0

    def capacity(self, version: str) -> EngineCapacity:
        return EngineCapacity(self.slots)

    def in_progress(self, version: str = "") -> int:
        return self.answers


def make_controller(engines: CountedEngines | None = None, **limits: object) -> AdmissionController:
    settings = ServeLimits(**limits)
    return AdmissionController(settings, None, engines or CountedEngines(), Metrics(), holder="g", queue=2)


def run(work: Callable[[AdmissionController], Awaitable[None]], controller: AdmissionController) -> None:
    """Do the work while the controller renews its leases in the background."""

    async def both() -> None:
        beside = asyncio.create_task(controller.run())
        try:
            await work(controller)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    asyncio.run(both())


async def code_of(controller: AdmissionController, cost: RequestCost = COST, caller: Caller = ADA) -> str:
    with pytest.raises(ApiError) as refused:
        await controller.admit(caller, cost)
    return refused.value.code


def slow(controller: AdmissionController) -> None:
    """Make the controller believe that an answer holds its slot for 8 s."""
    controller._backlogs["m"].speed.ended(COST, after_first_s=8.0, written=20)


def test_what_finds_no_slot_in_time_is_refused_and_an_end_makes_room() -> None:
    async def work(controller: AdmissionController) -> None:
        slow(controller)
        running = [await controller.admit(ADA, COST) for _ in range(SLOTS)]
        for each in running:
            each.began()
        assert await code_of(controller) == "queue_full"
        running[0].settle(120)
        await controller.admit(ADA, COST)

    run(work, make_controller(wait=1.0))


def test_answers_beyond_slots_and_queue_are_refused_and_what_they_took_is_returned() -> None:
    engines = CountedEngines(answers=SLOTS + 2)

    async def work(controller: AdmissionController) -> None:
        assert await code_of(controller) == "queue_full"
        engines.answers -= 1
        await controller.admit(ADA, COST)

    run(work, make_controller(engines, all=Limits(concurrent=1)))


def test_more_answers_than_all_places_can_hold_are_refused_for_good() -> None:
    async def work(controller: AdmissionController) -> None:
        many = RequestCost(model="m", answers=SLOTS + 3, prompt_tokens=1, max_tokens=1)
        assert await code_of(controller, many) == "invalid_value"

    run(work, make_controller())


def test_without_an_engine_only_the_queue_has_places() -> None:
    engines = CountedEngines(slots=0, answers=2)

    async def work(controller: AdmissionController) -> None:
        assert await code_of(controller) == "queue_full"
        engines.answers = 1
        await controller.admit(ADA, COST)

    run(work, make_controller(engines))


def test_no_request_is_refused_for_time_while_no_engine_is_connected() -> None:
    engines = CountedEngines()
    controller = make_controller(engines, wait=1.0)

    async def work(controller: AdmissionController) -> None:
        slow(controller)
        for _ in range(SLOTS):
            (await controller.admit(ADA, COST)).began()
        assert await code_of(controller) == "queue_full"
        engines.slots = 0
        await controller.admit(ADA, COST)

    run(work, controller)


def test_many_refusals_take_the_ladder_up_and_leave_out_what_it_says() -> None:
    async def work(controller: AdmissionController) -> None:
        slow(controller)
        for _ in range(SLOTS):
            (await controller.admit(ADA, COST)).began()
        for _ in range(40):
            assert await code_of(controller) == "queue_full"
        controller.step(asyncio.get_running_loop().time())
        assert controller.level == 3
        assert await code_of(controller, RequestCost("m", 1, 10, 10, priority=-1)) == "overloaded"
        assert await code_of(controller, RequestCost("m", 2, 10, 10)) == "overloaded"
        assert await code_of(controller) == "queue_full"

    run(work, make_controller(wait=1.0))


def test_a_refused_request_leaves_nothing_behind() -> None:
    async def work(controller: AdmissionController) -> None:
        first = await controller.admit(ADA, COST)
        assert await code_of(controller) == "too_many_concurrent"
        assert (controller._backlogs["m"].answers, controller._backlogs["m"].unread) == (1, 1)
        first.settle(0)
        assert (controller._backlogs["m"].answers, controller._backlogs["m"].unread) == (0, 0)
        await controller.admit(ADA, COST)

    run(work, make_controller(all=Limits(concurrent=1)))


def test_the_queue_counts_only_requests_without_a_first_token() -> None:
    async def work(controller: AdmissionController) -> None:
        first = await controller.admit(ADA, COST)
        assert await code_of(controller) == "queue_full"
        first.began()
        await controller.admit(ADA, COST)

    run(work, make_controller(all=Limits(queue=1)))


def test_one_tenant_at_its_limit_does_not_hold_up_another() -> None:
    async def work(controller: AdmissionController) -> None:
        await controller.admit(ADA, COST)
        assert await code_of(controller) == "rate_limited"
        await controller.admit(Caller(key="k2", tenant="bob", scopes=ADA.scopes), COST)

    run(work, make_controller(tenant=Limits(requests_per_second=0.01, burst=1)))


def test_a_flood_of_refusals_waits_for_nothing() -> None:
    async def work(controller: AdmissionController) -> None:
        await controller.admit(ADA, COST)
        await code_of(controller)
        for _ in range(200):
            refusing = controller.admit(ADA, COST)
            with pytest.raises(ApiError):
                refusing.send(None)  # one step: a coroutine that waited for anything would not end in it

    run(work, make_controller(all=Limits(requests_per_second=0.01, burst=1)))


def test_long_prompts_of_one_tenant_do_not_use_up_the_time_of_another() -> None:
    bob = Caller(key="k2", tenant="bob", scopes=ADA.scopes)
    long, short = RequestCost("m", 1, 5000, 20), RequestCost("m", 1, 10, 20)

    async def work(controller: AdmissionController) -> None:
        backlog = controller._backlogs["m"]
        backlog.speed.began(1.0, 1000 - 16)  # a thousand tokens a second
        await controller.admit(ADA, long)
        assert await code_of(controller, short) == "queue_full"
        theirs = await controller.admit(bob, short)
        assert await code_of(controller, long, bob) == "queue_full"
        theirs.began()
        assert backlog.unread_of == {"ada": 5000}

    run(work, make_controller(wait=2.0))
