"""Who computes how much, who is next, and who gives way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.engine import sequence
from windlass.serve.engine.block_manager import BlockManager
from windlass.serve.engine.scheduler import MAX_TENANTS, Scheduler, decide_budget, decide_chunks
from windlass.serve.engine.sequence import Sequence
from windlass.spec.protocol.wire import Generate


@given(st.lists(st.integers(1, 500), max_size=20), st.integers(1, 300))
def test_the_budget_is_used_up_or_nothing_is_left_to_do(remaining: list[int], budget: int) -> None:
    given_out = decide_chunks(remaining, budget)
    assert all(0 <= got <= want for got, want in zip(given_out, remaining, strict=True))
    assert sum(given_out) == min(budget, sum(remaining))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(4, 300))
def test_the_oldest_always_gets_on(remaining: list[int], budget: int) -> None:
    assert decide_chunks(remaining, budget)[0] >= min(remaining[0], budget // 4)


def test_short_prompts_overtake_a_long_one() -> None:
    assert decide_chunks([1000, 30, 20], 100) == [50, 30, 20]


@given(st.integers(1, 1000), st.integers(1, 100), st.integers(1, 40), st.floats(1e-7, 1.0))
def test_prompts_take_at_most_their_pause_of_a_step(
    maximum: int, minimum: int, decoding: int, rate: float
) -> None:
    budget = decide_budget(maximum, minimum, decoding=decoding, seconds_per_token=rate, pause_s=0.05)
    assert min(minimum, maximum) <= budget <= maximum
    assert budget * rate <= 0.05 or budget <= minimum


def test_prompts_take_the_whole_budget_where_nothing_decodes_or_nothing_is_known() -> None:
    assert decide_budget(512, 32, decoding=0, seconds_per_token=1.0, pause_s=0.05) == 512
    assert decide_budget(512, 32, decoding=9, seconds_per_token=0.0, pause_s=0.05) == 512


def a_scheduler(slots: int = 2, blocks: int = 64) -> Scheduler:
    return Scheduler(BlockManager(blocks), slots=slots, context=256)


class Queue:
    """Numbers arrivals as the engine does."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.arrivals = 0

    def add(self, tenant: str = "", priority: int = 0, tokens: list[int] | None = None) -> Sequence:
        self.arrivals += 1
        prompt = tokens or [self.arrivals] * 20
        request = Generate(str(self.arrivals), prompt, 10, tenant=tenant, priority=priority)
        one = sequence.begin("me", request, self.arrivals)
        self.scheduler.add(one)
        return one


def served_in_turn(scheduler: Scheduler, rounds: int) -> list[str]:
    """Admit one at a time into a roster of one slot, compute its prompt and let it go; return the tenants."""
    order = []
    for _ in range(rounds):
        scheduler.admit()
        (one,) = scheduler.running
        order.append(one.request.tenant)
        scheduler.computed(one, one.remaining)
        scheduler.check()
        scheduler.remove(one)
    return order


def test_the_oldest_is_next() -> None:
    scheduler = a_scheduler()
    queue = Queue(scheduler)
    asked = [queue.add() for _ in range(4)]
    scheduler.admit()
    assert scheduler.running == asked[:2]
    assert scheduler.waiting_count == 2


def test_a_request_is_known_from_its_arrival_to_its_end() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    parts = [queue.add() for _ in range(2)]
    for part in parts:
        assert scheduler.has("me", part.request.id)
    scheduler.admit()
    scheduler.preempt(parts[0])
    scheduler.remove(parts[0])
    assert not scheduler.has("me", parts[0].request.id)
    assert scheduler.has("me", parts[1].request.id)
    assert not scheduler.has("you", parts[1].request.id)


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    for tenant in "aaaaaaaabb":
        queue.add(tenant)
    assert served_in_turn(scheduler, 5).count("b") == 2


def test_who_was_away_has_no_right_to_make_up_for_it() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    for _ in range(12):
        queue.add("a")
    served_in_turn(scheduler, 6)
    for _ in range(6):
        queue.add("b")
    assert served_in_turn(scheduler, 6).count("b") in (3, 4)


def test_who_was_away_has_no_right_over_one_that_runs_and_has_nothing_waiting() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    for _ in range(30):
        queue.add("a")
        served_in_turn(scheduler, 1)
    running = queue.add("a")
    scheduler.admit()
    scheduler.computed(running, running.remaining)
    for _ in range(6):
        queue.add("b")
    for _ in range(6):
        queue.add("a")
    scheduler.remove(running)
    assert served_in_turn(scheduler, 6).count("b") in (3, 4)


def test_accounts_reset_when_no_tenant_is_active() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    for _ in range(10):
        queue.add("a")
    served_in_turn(scheduler, 10)
    for tenant in "bbbbbbaaaaaa":
        queue.add(tenant)
    assert served_in_turn(scheduler, 6).count("b") == 3


def test_accounts_and_lines_do_not_pile_up() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    queue.add("always there", priority=-1)
    for number in range(MAX_TENANTS + 50):
        queue.add(f"tenant {number}", priority=number)
        served_in_turn(scheduler, 1)
    assert len(scheduler._tenants) <= MAX_TENANTS + 1
    assert scheduler.waiting_count == 1
    assert sum(len(tenant.waiting) for tenant in scheduler._tenants.values()) == 1


def test_a_higher_priority_goes_before_all_others() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    for tenant, priority in (("a", 0), ("b", 1), ("c", 5), ("d", 1)):
        queue.add(tenant, priority)
    assert served_in_turn(scheduler, 4) == ["c", "b", "d", "a"]


def test_a_higher_priority_sets_the_youngest_of_the_lowest_aside() -> None:
    scheduler = a_scheduler(slots=3)
    queue = Queue(scheduler)
    old, young, middle = queue.add(), queue.add(), queue.add(priority=1)
    scheduler.admit()
    scheduler.computed(young, 5)
    urgent = queue.add(priority=2)
    scheduler.admit()
    scheduler.check()
    assert scheduler.running == [middle, old, urgent]
    assert (young.slot, young.cached, young.blocks, young.preemptions) == (-1, 0, [], 1)
    scheduler.remove(old)
    queue.add()
    scheduler.admit()
    assert young in scheduler.running


def test_an_equal_priority_preempts_no_sequence() -> None:
    scheduler = a_scheduler(slots=1)
    queue = Queue(scheduler)
    first = queue.add(priority=3)
    scheduler.admit()
    queue.add(priority=3)
    scheduler.admit()
    assert scheduler.running == [first]


def test_a_request_waits_until_there_are_blocks_for_its_prompt() -> None:
    scheduler = a_scheduler(slots=4, blocks=8)
    queue = Queue(scheduler)
    large, small = queue.add(tokens=[1] * 100), queue.add(tokens=[2] * 20)
    scheduler.admit()
    assert scheduler.running == [large]
    scheduler.remove(large)
    scheduler.admit()
    assert scheduler.running == [small]


def test_one_that_decodes_and_finds_no_block_sets_the_youngest_aside() -> None:
    scheduler = a_scheduler(slots=2, blocks=5)
    queue = Queue(scheduler)
    first, second = queue.add(tokens=[1] * 30), queue.add(tokens=[2] * 16)
    scheduler.admit()
    assert scheduler.running == [first, second]
    assert scheduler.reserve(first, 70)
    assert scheduler.running == [first]
    scheduler.check()
    assert second.slot < 0
    assert not any(block in first.blocks for block in second.blocks)


def test_the_youngest_sets_itself_aside() -> None:
    scheduler = a_scheduler(slots=2, blocks=5)
    queue = Queue(scheduler)
    first, second = queue.add(tokens=[1] * 30), queue.add(tokens=[2] * 16)
    scheduler.admit()
    assert not scheduler.reserve(second, 60)
    assert scheduler.running == [first]
    scheduler.check()


def test_equal_prompts_wait_for_the_first_to_read_it() -> None:
    scheduler = a_scheduler(slots=4)
    queue = Queue(scheduler)
    same = list(range(40))
    first, second, other = queue.add(tokens=same), queue.add(tokens=same), queue.add()
    scheduler.admit()
    assert scheduler.running == [first, other]
    scheduler.computed(first, 16)
    scheduler.admit()
    assert scheduler.running == [first, other]  # its next block is wanted, too
    scheduler.computed(first, 16)
    scheduler.admit()
    assert second in scheduler.running
    assert second.cached == 32
    assert second.blocks[:2] == first.blocks[:2]


def test_many_requests_that_wait_for_a_prompt_are_checked_at_once_and_delay_no_other() -> None:
    class Counting(Scheduler):
        looked = 0

        def _waits_for_prefix(self, one: Sequence) -> bool:
            self.looked += 1
            return super()._waits_for_prefix(one)

    scheduler = Counting(BlockManager(64), slots=4, context=256)
    queue = Queue(scheduler)
    first, *_ = [queue.add(tokens=list(range(40))) for _ in range(50)]
    other = queue.add(tokens=[99] * 40)
    scheduler.admit()
    assert scheduler.running == [first, other]
    assert scheduler.looked == 51


def test_equal_prompts_of_other_tenants_are_not_waited_for_and_not_shared() -> None:
    scheduler = a_scheduler(slots=4)
    queue = Queue(scheduler)
    same = list(range(40))
    first, second = queue.add("a", tokens=same), queue.add("b", tokens=same)
    scheduler.admit()
    assert scheduler.running == [first, second]
    scheduler.computed(first, 32)
    scheduler.remove(first)
    third, fourth = queue.add("c", tokens=same), queue.add("a", tokens=same)
    scheduler.admit()
    assert (third.cached, fourth.cached) == (0, 32)


def test_the_last_token_of_a_known_prompt_is_computed_for_its_scores() -> None:
    scheduler = a_scheduler()
    queue = Queue(scheduler)
    first = queue.add(tokens=[1] * 32)
    scheduler.admit()
    scheduler.computed(first, 32)
    scheduler.remove(first)
    second = queue.add(tokens=[1] * 32)
    scheduler.admit()
    assert (second.cached, second.remaining) == (16, 16)
