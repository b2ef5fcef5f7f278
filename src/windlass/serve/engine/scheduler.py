"""Who computes how many tokens in a step, and who holds which blocks.

    waiting -> admitted (slot and blocks for its prompt) -> prompt in chunks -> decoding -> removed
                  ^                                                                  |
                  +--------- set aside, when blocks or slots are wanted <------------+

Next is the highest priority; among those, the tenant that has had the least computed; among its requests,
the oldest. A sequence that was set aside gave its blocks away and keeps its tokens: it computes them again,
to the same numbers, and goes on.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

import numpy as np

from windlass.serve.engine.block_manager import BlockManager, BlockNode
from windlass.serve.engine.runner import BLOCK_TOKENS
from windlass.serve.engine.sequence import Owner, Sequence

OLDEST_SHARE = 4
MAX_TENANTS = 1024


def decide_chunks(remaining: Listed[int], budget: int) -> list[int]:
    """Return how many prompt tokens each sequence computes in this step, `budget` of them at most.

    `remaining` is in order of arrival. The shortest go first, because that makes the mean wait least; the
    oldest is sure of a quarter of the budget, so a long prompt is never starved by short ones.
    """
    given = [0] * len(remaining)
    if remaining:
        given[0] = min(remaining[0], max(1, budget // OLDEST_SHARE), budget)
    left = budget - sum(given)
    for place in sorted(range(len(remaining)), key=lambda place: remaining[place]):
        more = min(left, remaining[place] - given[place])
        given[place] += more
        left -= more
    return given


def decide_budget(most: int, least: int, *, decoding: int, seconds_per_token: float, pause_s: float) -> int:
    """Return how many prompt tokens a step may take, so that those who decode wait for `pause_s` at most."""
    if not decoding or seconds_per_token <= 0.0:
        return most
    return min(most, max(least, int(pause_s / seconds_per_token)))


@dataclass(eq=False, slots=True)
class _Tenant:
    """What one tenant waits for, and how much was computed for it."""

    waiting: dict[int, deque[Sequence]] = field(default_factory=dict)
    """By priority; a line in which nobody is left is gone."""
    served: float = 0.0


class Scheduler:
    """The sequences of an engine: those that wait, and those that hold slots and blocks."""

    def __init__(self, blocks: BlockManager, *, slots: int, context: int) -> None:
        self.blocks = blocks
        self.running: list[Sequence] = []
        self.tables = np.zeros((slots, -(-context // BLOCK_TOKENS)), np.int32)
        """The blocks of the sequence in each slot."""
        self._free_slots = list(range(slots - 1, -1, -1))
        self._tenants: dict[str, _Tenant] = {}
        self._asked: Counter[tuple[Owner, str]] = Counter()

    @property
    def waiting_count(self) -> int:
        return sum(len(line) for tenant in self._tenants.values() for line in tenant.waiting.values())

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        for tenant in self._tenants.values():
            for line in tenant.waiting.values():
                yield from line

    def has(self, owner: Owner, id_: str) -> bool:
        """Whether a request is under way; asked for every new one, however many wait."""
        return (owner, id_) in self._asked

    def add(self, one: Sequence, *, first: bool = False) -> None:
        """Let a sequence wait, before all others of its tenant and priority if it was set aside."""
        if not first:
            self._welcome(one.request.tenant)
            self._asked[one.owner, one.request.id] += 1
        line = self._tenants[one.request.tenant].waiting.setdefault(one.request.priority, deque())
        line.appendleft(one) if first else line.append(one)

    def remove(self, one: Sequence) -> None:
        """Take a sequence away, wherever it is."""
        self._asked[one.owner, one.request.id] -= 1
        if not self._asked[one.owner, one.request.id]:
            del self._asked[one.owner, one.request.id]
        if one.slot < 0:
            self._leave_line(one)
        else:
            self._release(one)

    def admit(self) -> None:
        """Give slots and blocks to those who are next, setting lower priorities aside where they must."""
        for one in self._in_turn():
            if one.pending is not None or self._waits_for_prefix(one):
                continue
            if not self._make_room(one):
                return
            self._leave_line(one)
            self._start(one)

    def reserve(self, one: Sequence, tokens: int) -> bool:
        """See that a sequence has blocks for `tokens` more; set the least important aside if need be.

        Return whether it still runs: the one set aside may be itself.
        """
        while len(one.blocks) * BLOCK_TOKENS < one.cached + tokens:
            block = self.blocks.take()
            if block is None:
                self.set_aside(self._least_important())
                if one.slot < 0:
                    return False
                continue
            self.tables[one.slot, len(one.blocks)] = block
            one.blocks.append(block)
        return True

    def computed(self, one: Sequence, tokens: int) -> None:
        """Note that so many tokens of a sequence have their keys and values; share the blocks they fill."""
        self._tenants[one.request.tenant].served += tokens
        one.cached += tokens
        while self.blocks.shares and (len(one.path) + 1) * BLOCK_TOKENS <= one.cached:
            number = len(one.path)
            inside = one.tokens[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]
            block = self.blocks.keep(one.root, one.path, inside, one.blocks[number])
            one.blocks[number] = self.tables[one.slot, number] = block

    def set_aside(self, one: Sequence) -> None:
        self._release(one)
        one.set_aside += 1
        self.add(one, first=True)

    def check(self) -> None:
        """Raise AssertionError if a block is lost or held twice."""
        self.blocks.check([block for one in self.running for block in one.blocks[len(one.path) :]])

    def _in_turn(self) -> Iterator[Sequence]:
        """Yield those who wait, as they are next; who is set aside meanwhile is not among them."""
        lines = [list(line) for tenant in self._tenants.values() for line in tenant.waiting.values()]
        return heapq.merge(*lines, key=self._rank)

    def _rank(self, one: Sequence) -> tuple[float, ...]:
        return -one.request.priority, self._tenants[one.request.tenant].served, one.arrival

    def _welcome(self, name: str) -> None:
        """Open a tenant's account; who was away does not bring the right to make up for it.

        Accounts compare those who are there: when nobody is, all begin anew.
        """
        running = {one.request.tenant for one in self.running}
        busy = {key: one for key, one in self._tenants.items() if one.waiting or key in running}
        if not busy or len(self._tenants) > MAX_TENANTS:
            self._tenants = dict(busy)
        tenant = self._tenants.setdefault(name, _Tenant())
        tenant.served = max(tenant.served, min((one.served for one in busy.values()), default=0.0))

    def _leave_line(self, one: Sequence) -> None:
        lines = self._tenants[one.request.tenant].waiting
        lines[one.request.priority].remove(one)
        if not lines[one.request.priority]:
            del lines[one.request.priority]

    def _start(self, one: Sequence) -> None:
        one.slot = self._free_slots.pop()
        path = self._known(one)
        self.blocks.use(path)
        one.path, one.blocks = list(path), [node.block for node in path]
        one.cached = len(path) * BLOCK_TOKENS
        self.tables[one.slot, : len(path)] = one.blocks
        self.running.append(one)
        started = self.reserve(one, one.remaining)
        assert started, "room was made, and was not there"

    def _known(self, one: Sequence) -> list[BlockNode]:
        """Return the blocks that need not be computed; the last token always is, for its scores."""
        if one.needs_all_states or not self.blocks.shares:
            return []
        return self.blocks.find(one.root, one.tokens, (len(one.tokens) - 1) // BLOCK_TOKENS)

    def _make_room(self, one: Sequence) -> bool:
        """See that there is a slot, and blocks for the prompt of `one` even if nothing of it is known."""
        # Those who decode will soon want a block each; without that they would set the newcomer aside again.
        wanted = -(-len(one.tokens) // BLOCK_TOKENS) + len(self.running)
        while not self._free_slots or self.blocks.available < wanted:
            victim = self._least_important() if self.running else None
            if victim is None or victim.request.priority >= one.request.priority:
                return False
            self.set_aside(victim)
        return True

    def _least_important(self) -> Sequence:
        return min(self.running, key=lambda one: (one.request.priority, -one.arrival))

    def _waits_for_prefix(self, one: Sequence) -> bool:
        """Whether a running sequence is about to compute tokens that this one begins with, too.

        Several answers to one prompt arrive together; the first reads it for all of them.
        """
        if one.needs_all_states or not self.blocks.shares:
            return False
        most = (len(one.tokens) - 1) // BLOCK_TOKENS
        for other in self.running:
            if other.is_decoding or other.root != one.root:
                continue
            ahead = (len(other.path) + 1) * BLOCK_TOKENS
            if ahead <= most * BLOCK_TOKENS and one.tokens[:ahead] == other.tokens[:ahead]:
                return True
        return False

    def _release(self, one: Sequence) -> None:
        for block in one.blocks[len(one.path) :]:
            self.blocks.give(block)
        self.blocks.leave(one.path)
        self.running.remove(one)
        self._free_slots.append(one.slot)
        one.path, one.blocks = [], []
        one.slot, one.cached, one.draft = -1, 0, []
