"""Blocks and the tree of known prefixes: nothing is lost, what is private stays so, and what goes first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from windlass.serve.engine.block_manager import BlockManager, BlockNode
from windlass.serve.engine.runner import BLOCK_TOKENS


def block_of(token: int) -> list[int]:
    return [token] * BLOCK_TOKENS


def fill(blocks: BlockManager, *letters: int, root: str = "") -> list[BlockNode]:
    """Compute a sequence of full blocks as an engine does; return its path, in use."""
    tokens = [token for letter in letters for token in block_of(letter)]
    path = blocks.find(root, tokens, len(letters))
    blocks.use(path)
    for letter in letters[len(path) :]:
        taken = blocks.take()
        assert taken is not None
        blocks.keep(root, path, block_of(letter), taken)
    return path


def known(blocks: BlockManager, *letters: int, root: str = "") -> int:
    tokens = [token for letter in letters for token in block_of(letter)]
    return len(blocks.find(root, tokens, len(letters)))


def test_a_prefix_is_found_as_far_as_it_was_computed() -> None:
    blocks = BlockManager(8)
    blocks.leave(fill(blocks, 1, 2, 3))
    assert [known(blocks, 1, 2, 3, 4), known(blocks, 1, 2, 9), known(blocks, 2)] == [3, 2, 0]
    assert (blocks.used, blocks.idle, blocks.available) == (0, 3, 8)


def test_each_root_has_its_own_prefixes() -> None:
    blocks = BlockManager(8)
    blocks.leave(fill(blocks, 1, root="mine"))
    assert known(blocks, 1, root="yours") == 0


def test_the_slower_of_two_gets_the_block_of_the_quicker() -> None:
    blocks = BlockManager(4)
    first, second = blocks.take(), blocks.take()
    assert first is not None
    assert second is not None
    mine: list[BlockNode] = []
    yours: list[BlockNode] = []
    assert blocks.keep("", mine, block_of(1), first) == first
    assert blocks.keep("", yours, block_of(1), second) == first
    assert mine == yours
    blocks.check([])
    assert blocks.used == 1


def test_what_was_used_longest_ago_goes_first() -> None:
    blocks = BlockManager(3)
    for letter in (1, 2, 3):
        blocks.leave(fill(blocks, letter))
    blocks.leave(fill(blocks, 1))
    assert blocks.take() is not None
    assert [known(blocks, letter) for letter in (1, 2, 3)] == [1, 0, 1]


def test_what_was_used_least_often_goes_first_if_that_is_the_policy() -> None:
    blocks = BlockManager(3, policy="lfu")
    for letter in (1, 1, 1, 2, 2, 3):
        blocks.leave(fill(blocks, letter))
    for left in ([1, 1, 0], [1, 0, 0], [0, 0, 0]):
        assert blocks.take() is not None
        assert [known(blocks, letter) for letter in (1, 2, 3)] == left


def test_a_path_goes_from_its_end() -> None:
    blocks = BlockManager(3)
    blocks.leave(fill(blocks, 1, 2, 3))
    for left in (2, 1, 0):
        assert blocks.take() is not None
        assert known(blocks, 1, 2, 3) == left
    assert blocks.take() is None


def test_what_is_in_use_never_goes() -> None:
    blocks = BlockManager(3)
    path = fill(blocks, 1, 2)
    blocks.leave(fill(blocks, 1, 2, 3))
    assert blocks.take() is not None
    assert blocks.take() is None
    blocks.clear()
    assert known(blocks, 1, 2, 3) == 2
    blocks.leave(path)
    assert blocks.available == 2


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_more_stays_idle_than_is_allowed(most: int) -> None:
    blocks = BlockManager(8, max_idle=most)
    blocks.leave(fill(blocks, 1, 2, 3))
    assert blocks.idle == most
    assert known(blocks, 1, 2, 3) == most


def test_the_queue_of_those_that_may_go_does_not_grow_with_use() -> None:
    blocks = BlockManager(4)
    for _ in range(1000):
        blocks.leave(fill(blocks, 1))
    assert len(blocks._evictable) <= 9
    blocks.clear()
    assert blocks.idle == 0


def test_a_root_without_blocks_is_forgotten() -> None:
    blocks = BlockManager(4)
    for tenant in range(100):
        blocks.leave(fill(blocks, 1, root=str(tenant)))
    assert len(blocks._roots) == 4


class Tree(RuleBasedStateMachine):
    """Sequences come, grow and go in any order; blocks are in one place each, whatever happens."""

    @initialize(
        policy=st.sampled_from(["lru", "lfu"]), max_idle=st.none() | st.integers(0, 5), shares=st.booleans()
    )
    def start(self, policy: str, max_idle: int | None, shares: bool) -> None:
        self.blocks = BlockManager(10, max_idle=max_idle, policy=policy, shares=shares)  # type: ignore[arg-type]
        self.paths: list[list[BlockNode]] = []
        self.held: list[int] = []

    @rule(letters=st.lists(st.integers(0, 2), min_size=1, max_size=4), root=st.sampled_from("ab"))
    def come(self, letters: list[int], root: str) -> None:
        if self.blocks.available >= len(letters):
            self.paths.append(fill(self.blocks, *letters, root=root))

    @rule(which=st.integers(0, 20))
    def go(self, which: int) -> None:
        if self.paths:
            self.blocks.leave(self.paths.pop(which % len(self.paths)))

    @rule()
    def hold(self) -> None:
        available, taken = self.blocks.available, self.blocks.take()
        assert (taken is not None) == (available > 0)
        if taken is not None:
            self.held.append(taken)

    @rule()
    def release(self) -> None:
        if self.held:
            self.blocks.give(self.held.pop())

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "blocks"):
            self.blocks.check(self.held)
            used = {node.block for path in self.paths for node in path}
            assert self.blocks.used == len(used) + len(self.held)


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 6))
def test_at_most_what_is_requested_is_found(letters: list[int], most: int) -> None:
    blocks = BlockManager(8)
    blocks.leave(fill(blocks, *letters))
    tokens = [token for letter in letters for token in block_of(letter)]
    assert len(blocks.find("", tokens, most)) == min(most, len(letters))
