"""Unequal devices together: shares follow speeds, and a team is only chosen where it is quicker."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.step_config import Sizes
from windlass.plan.fleet.constraints import PlanLimits
from windlass.plan.fleet.explore import Predictor
from windlass.plan.fleet.fleet_search import Problem, survey
from windlass.plan.fleet.heterogeneous import EXCHANGE, in_proportion, together
from windlass.plan.fleet.pools import pools_of
from windlass.plan.fleet.work import TrainingWork
from windlass.spec.fleet import fleet_of

MIDDLE = Sizes(32, 4096, 32, 8, 128, 14336, True, 128256, False)


def question(words: str, fake: Predictor) -> Problem:
    work = TrainingWork(MIDDLE, 4096, 512, 1e11)
    return Problem("job", work, pools_of(fleet_of(words)), PlanLimits(), search="greedy", predict=fake)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6), st.integers(6, 64))
def test_parts_are_all_given_and_every_worker_needs_its_own(speeds: list[float], parts: int) -> None:
    shares = in_proportion(speeds, parts)
    assert sum(shares) == parts
    times = [share / speed for share, speed in zip(shares, speeds, strict=True)]
    slowest = max(range(len(speeds)), key=times.__getitem__)
    others = (at for at in range(len(speeds)) if at != slowest and shares[slowest] > 1)
    assert all((shares[at] + 1) / speeds[at] >= times[slowest] * (1 - 1e-9) for at in others)


def test_a_team_is_quicker_than_its_best_part(fake: Predictor) -> None:
    problem = question("64xH100+64xA100", fake)
    team = together(problem.work, problem.pools, problem.climb)
    alone = min(problem.climb(problem.work, pool).best.step_s for pool in problem.pools)  # type: ignore[union-attr]
    assert team is not None
    assert team.step.seconds < alone
    assert sum(member.case.global_batch for member in team.members) == 512
    by_name = {member.case.device.name: member.case.global_batch for member in team.members}
    assert by_name["H100-SXM5"] > by_name["A100-SXM4-80GB"]
    assert team.step.parts[EXCHANGE] > 0


def test_slow_companions_are_left_alone(fake: Predictor) -> None:
    chosen = survey(question("64xH100+8xT4", fake)).choice(PlanLimits())
    assert chosen is not None
    assert [member.case.device.name for member in chosen.members] == ["H100-SXM5"]


def test_a_pool_that_cannot_hold_the_model_is_no_member(fake: Predictor) -> None:
    problem = question("64xH100+1xT4", fake)
    assert together(problem.work, problem.pools, problem.climb) is None


def test_a_slow_network_between_pools_makes_a_team_slower(fake: Predictor) -> None:
    problem = question("64xH100+64xA100", fake)
    quick = together(problem.work, problem.pools, problem.climb, 50e9)
    slow = together(problem.work, problem.pools, problem.climb, 1e9)
    assert quick is not None
    assert slow is not None
    assert slow.step.seconds > quick.step.seconds


def test_a_batch_that_cannot_be_shared_makes_no_team(fake: Predictor) -> None:
    problem = question("64xH100+64xA100", fake)
    assert together(replace(problem.work, global_batch=1), problem.pools, problem.climb) is None
