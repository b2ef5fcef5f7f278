from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.chaos.fault_catalog import ARSENAL
from windlass.lab.chaos.schedule import KINDS, LONGEST_S, SHORTEST_S, draw

SOME_KINDS = st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True)


@given(SOME_KINDS, st.floats(1, 600), st.floats(0.5, 60), st.integers(0, 2**32))
def test_a_storm_follows_from_its_seed(kinds: list[str], seconds: float, every_s: float, seed: int) -> None:
    shots = draw(kinds, seconds=seconds, every_s=every_s, seed=seed)
    assert shots == draw(kinds, seconds=seconds, every_s=every_s, seed=seed)
    assert [shot.at_s for shot in shots] == sorted(shot.at_s for shot in shots)
    assert all(0 <= shot.at_s <= seconds for shot in shots)
    assert all(SHORTEST_S <= shot.lasts_s <= LONGEST_S for shot in shots)


@given(SOME_KINDS, st.integers(0, 2**32))
def test_every_kind_comes_once_before_any_comes_again(kinds: list[str], seed: int) -> None:
    shots = draw(kinds, seconds=100, every_s=2, seed=seed)
    for upto in range(len(shots) + 1):
        counts = Counter(shot.kind for shot in shots[:upto])
        found = [counts[kind] for kind in kinds]
        assert max(found) - min(found) <= 1


def test_faults_come_as_often_as_asked_for() -> None:
    counts = [len(draw(list(KINDS), seconds=600, every_s=20, seed=seed)) for seed in range(200)]
    assert 28 < sum(counts) / len(counts) < 32


def test_a_storm_without_kinds_is_none() -> None:
    assert draw([], seconds=100, every_s=1, seed=1) == []


def test_every_kind_has_its_fault() -> None:
    assert KINDS.keys() == ARSENAL.keys()
