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
    most: int, least: int, decoding: int, rate: float
) -> None:
    budget = decide_budget(most, least, decoding=decoding, seconds_per_token=rate, pause_s=0.05)
    assert min(least, most) <= budget <= most
    assert budget * rate <= 0.05 or budget <= least


def test_prompts_take_all_where_nobody_decodes_or_nothing_is_known() -> None:
    assert decide_budget(512, 32, decoding=0, seconds_per_token=1.0, pause_s=0.05) == 512
    assert decide_budget(512, 32, decoding=9, seconds_per_token=0.0, pause_s=0.05) == 512


def a_roster(slots: int = 2, blocks: int = 64) -> Scheduler:
    return Scheduler(BlockManager(blocks), slots=slots, context=256)


class Queue:
    """Numbers arrivals as the engine does."""

    def __init__(self, roster: Scheduler) -> None:
        self.roster = roster
        self.arrivals = 0

    def add(self, tenant: str = "", priority: int = 0, tokens: list[int] | None = None) -> Sequence:
        self.arrivals += 1
        prompt = tokens or [self.arrivals] * 20
        request = Generate(str(self.arrivals), prompt, 10, tenant=tenant, priority=priority)
        one = sequence.begin("me", request, self.arrivals)
        self.roster.add(one)
        return one


def served_in_turn(roster: Scheduler, rounds: int) -> list[str]:
    """Admit one at a time into a roster of one slot, compute its prompt and let it go; return the tenants."""
    order = []
    for _ in range(rounds):
        roster.admit()
        (one,) = roster.running
        order.append(one.request.tenant)
        roster.computed(one, one.remaining)
        roster.check()
        roster.remove(one)
    return order


def test_the_oldest_is_next() -> None:
    roster = a_roster()
    queue = Queue(roster)
    asked = [queue.add() for _ in range(4)]
    roster.admit()
    assert roster.running == asked[:2]
    assert roster.waiting_count == 2


def test_a_request_is_known_from_its_arrival_to_its_end() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    parts = [queue.add() for _ in range(2)]
    for part in parts:
        assert roster.has("me", part.request.id)
    roster.admit()
    roster.set_aside(parts[0])
    roster.remove(parts[0])
    assert not roster.has("me", parts[0].request.id)
    assert roster.has("me", parts[1].request.id)
    assert not roster.has("you", parts[1].request.id)


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    for tenant in "aaaaaaaabb":
        queue.add(tenant)
    assert served_in_turn(roster, 5).count("b") == 2


def test_who_was_away_has_no_right_to_make_up_for_it() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    for _ in range(12):
        queue.add("a")
    served_in_turn(roster, 6)
    for _ in range(6):
        queue.add("b")
    assert served_in_turn(roster, 6).count("b") in (3, 4)


def test_who_was_away_has_no_right_over_one_that_runs_and_has_nothing_waiting() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    for _ in range(30):
        queue.add("a")
        served_in_turn(roster, 1)
    running = queue.add("a")
    roster.admit()
    roster.computed(running, running.remaining)
    for _ in range(6):
        queue.add("b")
    for _ in range(6):
        queue.add("a")
    roster.remove(running)
    assert served_in_turn(roster, 6).count("b") in (3, 4)


def test_accounts_begin_anew_when_nobody_is_there() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    for _ in range(10):
        queue.add("a")
    served_in_turn(roster, 10)
    for tenant in "bbbbbbaaaaaa":
        queue.add(tenant)
    assert served_in_turn(roster, 6).count("b") == 3


def test_accounts_and_lines_do_not_pile_up() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    queue.add("always there", priority=-1)
    for number in range(MAX_TENANTS + 50):
        queue.add(f"tenant {number}", priority=number)
        served_in_turn(roster, 1)
    assert len(roster._tenants) <= MAX_TENANTS + 1
    assert roster.waiting_count == 1
    assert sum(len(tenant.waiting) for tenant in roster._tenants.values()) == 1


def test_a_higher_priority_goes_before_all_others() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    for tenant, priority in (("a", 0), ("b", 1), ("c", 5), ("d", 1)):
        queue.add(tenant, priority)
    assert served_in_turn(roster, 4) == ["c", "b", "d", "a"]


def test_a_higher_priority_sets_the_youngest_of_the_lowest_aside() -> None:
    roster = a_roster(slots=3)
    queue = Queue(roster)
    old, young, middle = queue.add(), queue.add(), queue.add(priority=1)
    roster.admit()
    roster.computed(young, 5)
    urgent = queue.add(priority=2)
    roster.admit()
    roster.check()
    assert roster.running == [middle, old, urgent]
    assert (young.slot, young.cached, young.blocks, young.set_aside) == (-1, 0, [], 1)
    roster.remove(old)
    queue.add()
    roster.admit()
    assert young in roster.running


def test_an_equal_priority_sets_nobody_aside() -> None:
    roster = a_roster(slots=1)
    queue = Queue(roster)
    first = queue.add(priority=3)
    roster.admit()
    queue.add(priority=3)
    roster.admit()
    assert roster.running == [first]


def test_a_request_waits_until_there_are_blocks_for_its_prompt() -> None:
    roster = a_roster(slots=4, blocks=8)
    queue = Queue(roster)
    large, small = queue.add(tokens=[1] * 100), queue.add(tokens=[2] * 20)
    roster.admit()
    assert roster.running == [large]
    roster.remove(large)
    roster.admit()
    assert roster.running == [small]


def test_one_that_decodes_and_finds_no_block_sets_the_youngest_aside() -> None:
    roster = a_roster(slots=2, blocks=5)
    queue = Queue(roster)
    first, second = queue.add(tokens=[1] * 30), queue.add(tokens=[2] * 16)
    roster.admit()
    assert roster.running == [first, second]
    assert roster.reserve(first, 70)
    assert roster.running == [first]
    roster.check()
    assert second.slot < 0
    assert not any(block in first.blocks for block in second.blocks)


def test_the_youngest_sets_itself_aside() -> None:
    roster = a_roster(slots=2, blocks=5)
    queue = Queue(roster)
    first, second = queue.add(tokens=[1] * 30), queue.add(tokens=[2] * 16)
    roster.admit()
    assert not roster.reserve(second, 60)
    assert roster.running == [first]
    roster.check()


def test_equal_prompts_wait_for_the_first_to_read_it() -> None:
    roster = a_roster(slots=4)
    queue = Queue(roster)
    same = list(range(40))
    first, second, other = queue.add(tokens=same), queue.add(tokens=same), queue.add()
    roster.admit()
    assert roster.running == [first, other]
    roster.computed(first, 16)
    roster.admit()
    assert roster.running == [first, other]  # its next block is wanted, too
    roster.computed(first, 16)
    roster.admit()
    assert second in roster.running
    assert second.cached == 32
    assert second.blocks[:2] == first.blocks[:2]


def test_many_who_wait_for_a_prompt_are_looked_at_once_and_hold_up_nobody() -> None:
    class Counting(Scheduler):
        looked = 0

        def _waits_for_prefix(self, one: Sequence) -> bool:
            self.looked += 1
            return super()._waits_for_prefix(one)

    roster = Counting(BlockManager(64), slots=4, context=256)
    queue = Queue(roster)
    first, *_ = [queue.add(tokens=list(range(40))) for _ in range(50)]
    other = queue.add(tokens=[99] * 40)
    roster.admit()
    assert roster.running == [first, other]
    assert roster.looked == 51


def test_equal_prompts_of_other_tenants_are_not_waited_for_and_not_shared() -> None:
    roster = a_roster(slots=4)
    queue = Queue(roster)
    same = list(range(40))
    first, second = queue.add("a", tokens=same), queue.add("b", tokens=same)
    roster.admit()
    assert roster.running == [first, second]
    roster.computed(first, 32)
    roster.remove(first)
    third, fourth = queue.add("c", tokens=same), queue.add("a", tokens=same)
    roster.admit()
    assert (third.cached, fourth.cached) == (0, 32)


def test_the_last_token_of_a_known_prompt_is_computed_for_its_scores() -> None:
    roster = a_roster()
    queue = Queue(roster)
    first = queue.add(tokens=[1] * 32)
    roster.admit()
    roster.computed(first, 32)
    roster.remove(first)
    second = queue.add(tokens=[1] * 32)
    roster.admit()
    assert (second.cached, second.remaining) == (16, 16)
