"""A process learns from its command line which of a run's processes it is."""

import argparse
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.protocol.rank import RankInfo, add_member, member_of

MEMBERS = st.builds(
    RankInfo,
    rank=st.integers(0, 63),
    world=st.integers(2, 64),
    rendezvous=st.just("10.0.0.1:29400"),
    cores=st.lists(st.integers(0, 255), max_size=4).map(tuple),
)


@given(MEMBERS | st.just(RankInfo()))
def test_a_member_is_read_back_from_its_arguments(member: RankInfo) -> None:
    parser = argparse.ArgumentParser()
    add_member(parser)
    assert member_of(parser.parse_args(member.arguments)) == member


def test_a_settled_process_stays_on_its_cores_with_a_thread_for_each() -> None:
    core = min(os.sched_getaffinity(0))
    script = (
        "import os; from windlass.spec.protocol.rank import RankInfo, apply_affinity\n"
        f"apply_affinity(RankInfo(0, 1, '', ({core},)))\n"
        "print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == [f"[{core}]", "1"]
