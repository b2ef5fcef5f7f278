"""State moves from memory to memory: every needed box arrives once, from whoever has it."""

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.parallel.param_shard import Slice, whole
from windlass.parallel.process_group import SingleProcess
from windlass.train.elastic.state_transfer import LocalSlice, exchange, listed, plan_moves, unlisted

SHAPE = (7, 5)
KEY = ("layers.0.up", "")


def boxes() -> st.SearchStrategy[Slice]:
    span = [st.tuples(st.integers(0, size), st.integers(0, size)).map(sorted) for size in SHAPE]
    return st.tuples(*span).map(lambda spans: Slice(tuple((a, b) for a, b in spans)))


def cells(box: Slice) -> set[tuple[int, int]]:
    (a, b), (c, d) = box.spans
    return {(i, j) for i in range(a, b) for j in range(c, d)}


@given(
    st.lists(st.lists(boxes(), max_size=3), min_size=1, max_size=4), st.lists(boxes(), min_size=1, max_size=4)
)
def test_a_plan_sends_every_cell_once_or_says_that_no_member_has_it(
    have: list[list[Slice]], need: list[Slice]
) -> None:
    world = max(len(have), len(need))
    stocks = [{KEY: have[rank] if rank < len(have) else []} for rank in range(world)]
    wants = [{KEY: [need[rank]] if rank < len(need) else []} for rank in range(world)]
    moves, missing = plan_moves(stocks, wants)
    held = [set().union(*(cells(box) for box in stock[KEY])) for stock in stocks]
    for rank, want in enumerate(wants):
        wanted = set().union(*(cells(box) for box in want[KEY]))
        arrived = [cell for move in moves if move.target == rank for cell in cells(move.box)]
        absent = {cell for target, _, box in missing if target == rank for cell in cells(box)}
        assert len(arrived) == len(set(arrived))
        assert set(arrived) == wanted & set().union(*held)
        assert absent == wanted - set().union(*held)
    for move in moves:
        assert cells(move.box) <= held[move.source]
        own = held[move.target] & cells(move.box)
        assert not own or move.source == move.target, "what is here is not fetched"


def test_those_who_have_the_same_share_the_sending() -> None:
    stock = {(f"w{n}", ""): [whole((10, 10))] for n in range(8)}
    moves, _ = plan_moves([stock, stock, stock, {}], [{}, {}, {}, stock])
    sent = [sum(prod(move.box.shape) for move in moves if move.source == rank) for rank in range(3)]
    assert max(sent) - min(sent) <= 100


def test_what_is_already_in_its_place_is_not_touched() -> None:
    values = torch.arange(35.0).reshape(SHAPE)
    stock = {KEY: [LocalSlice(whole(SHAPE), values)]}
    half = Slice(((2, 6), (0, 5)))
    room = {KEY: [LocalSlice(half, torch.zeros(half.shape))]}
    moves, missing = plan_moves([unlisted(listed(stock))], [unlisted(listed(room))])
    assert not missing
    assert exchange(SingleProcess(), moves, stock, room) == 0
    assert torch.equal(room[KEY][0].tensor, values[2:6])
    same, _ = plan_moves([unlisted(listed(stock))], [unlisted(listed(stock))])
    exchange(SingleProcess(), same, stock, stock)
    assert torch.equal(values, torch.arange(35.0).reshape(SHAPE))
