"""Who computes on which core."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.cluster.launch.cores import divide_cores, own_cores

CORES = st.lists(st.integers(0, 255), min_size=1, max_size=64, unique=True)


@given(CORES, st.integers(1, 80))
def test_every_rank_has_cores_and_as_many_as_every_other(cores: list[int], ranks: int) -> None:
    shares = divide_cores(cores, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    assert all(share and set(share) <= set(cores) for share in shares)


@given(CORES, st.integers(1, 80))
def test_no_core_is_shared_while_there_are_enough(cores: list[int], ranks: int) -> None:
    taken = [core for share in divide_cores(cores, ranks) for core in share]
    if ranks <= len(cores):
        assert len(taken) == len(set(taken)) > len(cores) - ranks
    else:
        turns = [taken.count(core) for core in cores]
        assert max(turns) - min(turns) <= 1


@given(CORES, st.integers(1, 80), st.integers(1, 8))
def test_no_rank_has_more_than_it_may(cores: list[int], ranks: int, most: int) -> None:
    assert all(1 <= len(share) <= most for share in divide_cores(cores, ranks, most))


def test_neighbours_stay_together() -> None:
    assert divide_cores([0, 8, 1, 9, 2, 10], 3) == [(0, 8), (1, 9), (2, 10)]


def test_this_machine_has_cores_to_divide() -> None:
    assert divide_cores(own_cores(), 1) == [tuple(own_cores())]
