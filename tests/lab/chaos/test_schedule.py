from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.chaos.experiment import FAULTS
from windlass.lab.chaos.schedule import KINDS, LONGEST_S, SHORTEST_S, draw

SOME_KINDS = st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True)


@given(SOME_KINDS, st.floats(1, 600), st.floats(0.5, 60), st.integers(0, 2**32))
def test_an_experiment_follows_from_its_seed(
    kinds: list[str], seconds: float, every_s: float, seed: int
) -> None:
    faults = draw(kinds, seconds=seconds, every_s=every_s, seed=seed)
    assert faults == draw(kinds, seconds=seconds, every_s=every_s, seed=seed)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert all(0 <= fault.at_s <= seconds for fault in faults)
    assert all(SHORTEST_S <= fault.lasts_s <= LONGEST_S for fault in faults)


@given(SOME_KINDS, st.integers(0, 2**32))
def test_every_kind_comes_once_before_any_comes_again(kinds: list[str], seed: int) -> None:
    faults = draw(kinds, seconds=100, every_s=2, seed=seed)
    for upto in range(len(faults) + 1):
        counts = Counter(fault.kind for fault in faults[:upto])
        found = [counts[kind] for kind in kinds]
        assert max(found) - min(found) <= 1


def test_faults_come_as_often_as_requested() -> None:
    counts = [len(draw(list(KINDS), seconds=600, every_s=20, seed=seed)) for seed in range(200)]
    assert 28 < sum(counts) / len(counts) < 32


def test_an_experiment_without_kinds_is_none() -> None:
    assert draw([], seconds=100, every_s=1, seed=1) == []


def test_every_kind_has_its_fault() -> None:
    assert KINDS.keys() == FAULTS.keys()
