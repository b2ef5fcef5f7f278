"""The scheduler: which sequences compute how many tokens in a step, and which hold slots and blocks.

    waiting -> admitted (slot and blocks for its prompt) -> prefill in chunks -> decoding -> removed
                  ^                                                                  |
                  +--------- preempted, when blocks or slots run out <---------------+

Sequences are admitted by priority; then by tenant, the one with the fewest computed tokens first; then by
arrival. A preempted sequence gives up its blocks and keeps its tokens: it recomputes their keys and values,
to the same numbers, and then continues.
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

    `remaining` is in order of arrival. The shortest prompts go first, which minimises the mean wait; the
    oldest always gets a quarter of the budget, so short prompts never starve a long one.
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


def decide_budget(
    maximum: int, minimum: int, *, decoding: int, seconds_per_token: float, pause_s: float
) -> int:
    """Return how many prompt tokens a step may take, so that decoding sequences wait `pause_s` at most."""
    if not decoding or seconds_per_token <= 0.0:
        return maximum
    return min(maximum, max(minimum, int(pause_s / seconds_per_token)))


@dataclass(eq=False, slots=True)
class _Tenant:
    """The waiting requests of one tenant, and how many tokens were computed for it."""

    waiting: dict[int, deque[Sequence]] = field(default_factory=dict)
    """A queue for each priority; empty queues are deleted."""
    served: float = 0.0


class Scheduler:
    """The sequences of an engine: waiting ones, and running ones, which hold slots and blocks."""

    def __init__(self, blocks: BlockManager, *, slots: int, context: int) -> None:
        self.blocks = blocks
        self.running: list[Sequence] = []
        self.tables = np.zeros((slots, -(-context // BLOCK_TOKENS)), np.int32)
        """The blocks of the sequence in each slot."""
        self._free_slots = list(range(slots - 1, -1, -1))
        self._tenants: dict[str, _Tenant] = {}
        self._request_ids: Counter[tuple[Owner, str]] = Counter()

    @property
    def waiting_count(self) -> int:
        return sum(len(line) for tenant in self._tenants.values() for line in tenant.waiting.values())

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        for tenant in self._tenants.values():
            for line in tenant.waiting.values():
                yield from line

    def has(self, owner: Owner, id_: str) -> bool:
        """Whether a request is under way; constant time, since it is called for every new request."""
        return (owner, id_) in self._request_ids

    def add(self, seq: Sequence, *, first: bool = False) -> None:
        """Queue a sequence; `first` puts a preempted one before all others of its tenant and priority."""
        if not first:
            self._open_account(seq.request.tenant)
            self._request_ids[seq.owner, seq.request.id] += 1
        line = self._tenants[seq.request.tenant].waiting.setdefault(seq.request.priority, deque())
        if first:
            line.appendleft(seq)
        else:
            line.append(seq)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence, waiting or running."""
        self._request_ids[seq.owner, seq.request.id] -= 1
        if not self._request_ids[seq.owner, seq.request.id]:
            del self._request_ids[seq.owner, seq.request.id]
        if seq.slot < 0:
            self._leave_line(seq)
        else:
            self._release(seq)

    def admit(self) -> None:
        """Give slots and blocks to the next waiting sequences, preempting lower priorities if needed."""
        for seq in self._in_turn():
            if seq.pending is not None or self._waits_for_prefix(seq):
                continue
            if not self._make_room(seq):
                return
            self._leave_line(seq)
            self._start(seq)

    def reserve(self, seq: Sequence, tokens: int) -> bool:
        """Allocate blocks for `tokens` more tokens of a sequence, preempting the lowest priority if needed.

        Return whether the sequence still runs: it may itself be the one that was preempted.
        """
        while len(seq.blocks) * BLOCK_TOKENS < seq.cached + tokens:
            block = self.blocks.take()
            if block is None:
                self.preempt(self._lowest_priority())
                if seq.slot < 0:
                    return False
                continue
            self.tables[seq.slot, len(seq.blocks)] = block
            seq.blocks.append(block)
        return True

    def computed(self, seq: Sequence, tokens: int) -> None:
        """Record that keys and values of `tokens` more tokens are in blocks; share the full blocks."""
        self._tenants[seq.request.tenant].served += tokens
        seq.cached += tokens
        while self.blocks.shares and (len(seq.path) + 1) * BLOCK_TOKENS <= seq.cached:
            number = len(seq.path)
            inside = seq.tokens[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS]
            block = self.blocks.keep(seq.root, seq.path, inside, seq.blocks[number])
            seq.blocks[number] = self.tables[seq.slot, number] = block

    def preempt(self, seq: Sequence) -> None:
        """Take slot and blocks from a running sequence and queue it first; it recomputes later."""
        self._release(seq)
        seq.preemptions += 1
        self.add(seq, first=True)

    def check(self) -> None:
        """Raise AssertionError if a block is lost or held twice."""
        self.blocks.check([block for seq in self.running for block in seq.blocks[len(seq.path) :]])

    def _in_turn(self) -> Iterator[Sequence]:
        """Yield the waiting sequences in order of admission; a snapshot, without any preempted meanwhile."""
        lines = [list(line) for tenant in self._tenants.values() for line in tenant.waiting.values()]
        return heapq.merge(*lines, key=self._rank)

    def _rank(self, seq: Sequence) -> tuple[float, ...]:
        return -seq.request.priority, self._tenants[seq.request.tenant].served, seq.arrival

    def _open_account(self, name: str) -> None:
        """Start fair-share accounting for a tenant at the current minimum, so idle time earns no credit.

        The accounts of idle tenants are dropped when no tenant has work, or when there are too many.
        """
        running = {seq.request.tenant for seq in self.running}
        busy = {key: tenant for key, tenant in self._tenants.items() if tenant.waiting or key in running}
        if not busy or len(self._tenants) > MAX_TENANTS:
            self._tenants = dict(busy)
        tenant = self._tenants.setdefault(name, _Tenant())
        tenant.served = max(tenant.served, min((other.served for other in busy.values()), default=0.0))

    def _leave_line(self, seq: Sequence) -> None:
        lines = self._tenants[seq.request.tenant].waiting
        lines[seq.request.priority].remove(seq)
        if not lines[seq.request.priority]:
            del lines[seq.request.priority]

    def _start(self, seq: Sequence) -> None:
        seq.slot = self._free_slots.pop()
        path = self._known(seq)
        self.blocks.use(path)
        seq.path, seq.blocks = list(path), [node.block for node in path]
        seq.cached = len(path) * BLOCK_TOKENS
        self.tables[seq.slot, : len(path)] = seq.blocks
        self.running.append(seq)
        started = self.reserve(seq, seq.remaining)
        assert started, "no blocks although _make_room had found enough"

    def _known(self, seq: Sequence) -> list[BlockNode]:
        """Return the cached blocks of its prefix; the last token is always computed, for its scores."""
        if seq.needs_all_states or not self.blocks.shares:
            return []
        return self.blocks.find(seq.root, seq.tokens, (len(seq.tokens) - 1) // BLOCK_TOKENS)

    def _make_room(self, seq: Sequence) -> bool:
        """Make sure that there is a slot, and blocks for the whole prompt even if none of it is cached."""
        # Each decoding sequence soon needs another block; without this margin it would preempt the newcomer.
        wanted = -(-len(seq.tokens) // BLOCK_TOKENS) + len(self.running)
        while not self._free_slots or self.blocks.available < wanted:
            victim = self._lowest_priority() if self.running else None
            if victim is None or victim.request.priority >= seq.request.priority:
                return False
            self.preempt(victim)
        return True

    def _lowest_priority(self) -> Sequence:
        return min(self.running, key=lambda seq: (seq.request.priority, -seq.arrival))

    def _waits_for_prefix(self, seq: Sequence) -> bool:
        """Whether a running sequence is about to compute a block that this one starts with.

        Several answers to one prompt arrive together; the first computes it for all of them.
        """
        if seq.needs_all_states or not self.blocks.shares:
            return False
        max_blocks = (len(seq.tokens) - 1) // BLOCK_TOKENS
        for other in self.running:
            if other.is_decoding or other.root != seq.root:
                continue
            ahead = (len(other.path) + 1) * BLOCK_TOKENS
            if ahead <= max_blocks * BLOCK_TOKENS and seq.tokens[:ahead] == other.tokens[:ahead]:
                return True
        return False

    def _release(self, seq: Sequence) -> None:
        for block in seq.blocks[len(seq.path) :]:
            self.blocks.give(block)
        self.blocks.leave(seq.path)
        self.running.remove(seq)
        self._free_slots.append(seq.slot)
        seq.path, seq.blocks = [], []
        seq.slot, seq.cached, seq.draft = -1, 0, []
