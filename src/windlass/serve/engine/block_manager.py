"""The KV cache: which sequences hold which blocks of keys and values, and which prefixes can be reused.

A full block of tokens, computed once, is a node in a radix tree: its path from the root spells the tokens
before it. A sequence that starts with the same tokens uses the blocks along that path instead of computing
them. There is a root for every (tenant, adapter), so a fast answer does not reveal what other tenants sent;
tenants that agreed to share prefixes have one root together.

A block is free, or held by one sequence, or in the tree, where it counts the sequences that use it. Unused
blocks stay in the tree until their memory is needed or `max_idle` is reached; leaves are evicted first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from windlass.serve.engine.runner import BLOCK_TOKENS

Policy = Literal["lru", "lfu"]
"""Eviction order: least recently used, or least frequently used."""


@dataclass(eq=False, slots=True)
class BlockNode:
    """A full block in the tree."""

    block: int
    tokens: tuple[int, ...]
    parent: BlockNode | None
    children: dict[tuple[int, ...], BlockNode] = field(default_factory=dict)
    users: int = 0
    uses: int = 0
    last: int = 0
    mark: int = 0
    """Number of its newest entry in the eviction queue; older entries are stale."""


class BlockManager:
    """All blocks of an engine."""

    def __init__(
        self, count: int, *, max_idle: int | None = None, policy: Policy = "lru", shares: bool = True
    ) -> None:
        self.count, self.shares = count, shares
        self.idle = 0
        self.hits = self.misses = 0
        self._max_idle = count if max_idle is None else max_idle
        self._policy = policy
        # The last freed block is reused first: it is warm, and the memory in use stays small.
        self._free = list(range(count - 1, -1, -1))
        self._roots: dict[Hashable, BlockNode] = {}
        self._clock = itertools.count(1)
        self._evictable: list[tuple[int, int, int, BlockNode]] = []

    @property
    def available(self) -> int:
        """How many blocks could be allocated now."""
        return len(self._free) + self.idle

    @property
    def used(self) -> int:
        """How many blocks running sequences hold."""
        return self.count - self.available

    def take(self) -> int | None:
        """Allocate a block for one sequence, evicting an idle one if needed; None when all are in use."""
        if not self._free and not self._evict():
            return None
        return self._free.pop()

    def give(self, block: int) -> None:
        self._free.append(block)

    def find(self, root: Hashable, tokens: Sequence[int], max_blocks: int) -> list[BlockNode]:
        """Return the path of at most `max_blocks` cached blocks that `tokens` start with, for `use`."""
        path: list[BlockNode] = []
        node = self._roots.get(root)
        while node is not None and len(path) < max_blocks:
            at = len(path) * BLOCK_TOKENS
            node = node.children.get(tuple(tokens[at : at + BLOCK_TOKENS]))
            if node is not None:
                path.append(node)
        self.hits += len(path)
        self.misses += max_blocks - len(path)
        return path

    def use(self, path: Sequence[BlockNode]) -> None:
        for node in path:
            self.idle -= not node.users
            node.users += 1
            node.uses += 1

    def leave(self, path: Sequence[BlockNode]) -> None:
        """Stop using a path; its blocks stay cached."""
        now = next(self._clock)
        for node in reversed(path):
            node.users -= 1
            node.last = now
            self.idle += not node.users
            self._queue_if_idle(node)
        while self.idle > self._max_idle and self._evict():
            pass

    def keep(self, root: Hashable, path: list[BlockNode], tokens: Sequence[int], block: int) -> int:
        """Add a full block to the tree below `path`, which grows by it; return the block to use.

        If another sequence has added the same tokens first, its block holds the same numbers and is used.
        """
        parent = path[-1] if path else self._roots.setdefault(root, BlockNode(-1, (), None))
        key = tuple(tokens)
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = BlockNode(block, key, parent)
            self.idle += 1  # `use` takes it off again
        else:
            self.give(block)
        self.use([node])
        path.append(node)
        return node.block

    def clear(self) -> None:
        """Evict every block that no sequence uses."""
        while self._evict():
            pass

    def check(self, held: Sequence[int]) -> None:
        """Raise AssertionError unless every block is free, in the tree or among `held`, exactly once."""
        kept = [node for root in self._roots.values() for node in _below(root)]
        every = sorted([*self._free, *(node.block for node in kept), *held])
        assert every == list(range(self.count)), "a block is lost, or held twice"
        assert self.idle == sum(not node.users for node in kept), "idle blocks are miscounted"

    def _queue_if_idle(self, node: BlockNode) -> None:
        if not node.users and not node.children:
            node.mark = next(self._clock)
            uses = node.uses if self._policy == "lfu" else 0
            heapq.heappush(self._evictable, (uses, node.last, node.mark, node))
        if len(self._evictable) > 2 * self.count:  # at most one entry for each block is not stale
            self._evictable = [entry for entry in self._evictable if _is_current(entry)]
            heapq.heapify(self._evictable)

    def _evict(self) -> bool:
        """Evict the idle leaf that is first by the policy; return whether there was one."""
        while self._evictable:
            entry = heapq.heappop(self._evictable)
            if _is_current(entry):
                self._drop(entry[-1])
                return True
        return False

    def _drop(self, node: BlockNode) -> None:
        parent, node.parent = node.parent, None
        assert parent is not None, "a root is no block"
        del parent.children[node.tokens]
        self.idle -= 1
        self.give(node.block)
        if parent.parent is not None:
            self._queue_if_idle(parent)
        elif not parent.children:
            self._roots = {root: top for root, top in self._roots.items() if top is not parent}


def _is_current(entry: tuple[int, int, int, BlockNode]) -> bool:
    """Whether a queued node may still be evicted: not if it was used again, or got children, meanwhile."""
    *_, mark, node = entry
    return mark == node.mark and not node.users and not node.children and node.parent is not None


def _below(node: BlockNode) -> list[BlockNode]:
    found, stack = [], list(node.children.values())
    while stack:
        child = stack.pop()
        found.append(child)
        stack += child.children.values()
    return found
