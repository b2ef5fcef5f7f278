"""What a Ray cluster does beyond what every cluster does: it has nodes, and they die."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from windlass.cluster.backend import ClusterBackend, Group, GroupStatus, Member, Resources, Restart
from windlass.lab.proofs.backends.ray_nodes import RayNodes

pytestmark = pytest.mark.slow
QUICK = Restart(back_off_s=0.05, max_back_off_s=5.0)


def until(backend: ClusterBackend, key: str, holds: Callable[[GroupStatus], bool]) -> GroupStatus:
    end, standing = time.monotonic() + 120, None
    while time.monotonic() < end:
        standing = backend.observe(key)
        if standing is not None and holds(standing):
            return standing
        time.sleep(0.1)
    raise AssertionError(f"{key} never came to it: {standing}")


def at(standing: GroupStatus, node: str) -> Member:
    return next(member for member in standing.members if member.node == node)


@pytest.fixture
def backend(ray_nodes: RayNodes) -> ClusterBackend:
    from windlass.cluster.on_ray.ray_backend import RayBackend

    return RayBackend(ray_nodes.address)


def test_members_of_a_node_that_dies_run_elsewhere_and_the_others_notice_nothing(
    backend: ClusterBackend, ray_nodes: RayNodes
) -> None:
    dead = ray_nodes.host(1)
    kept = Group("kept", "made_up_member", ("sleep",), 3, resources=Resources(cores=0.5), restart=QUICK)
    once = replace(kept, name="once", resources=Resources(cores=0.25), restart=Restart("never"))
    backend.launch(kept)
    backend.launch(once)
    before = until(backend, kept.key, lambda s: s.running == 3)
    until(backend, once.key, lambda s: s.running == 3)
    assert len({member.node for member in before.members}) == 3, "one on each"
    struck = at(before, dead)
    ray_nodes.kill(1)
    try:
        lost = until(backend, once.key, lambda s: any(m.state == "lost" for m in s.members))
        after = until(backend, kept.key, lambda s: s.running == 3 and s.members[struck.index].node != dead)
        assert [m.reason for m in lost.members if m.state == "lost"] == [f"its machine {dead} is gone"]
        assert after.members[struck.index].restarts == 1
        untouched = [member for member in before.members if member.index != struck.index]
        assert [after.members[member.index] for member in untouched] == untouched
        assert [n.alive for n in backend.survey().nodes if n.name == dead] == [False]
    finally:
        ray_nodes.add(1)
        for group in (kept, once):
            backend.stop(group.key)


def test_a_controller_that_is_restarted_finds_everything_again(
    backend: ClusterBackend, ray_nodes: RayNodes
) -> None:
    import ray

    group = Group("g", "made_up_member", ("sleep",), 2, tenant="steward", restart=QUICK)
    backend.launch(group)
    before = until(backend, group.key, lambda s: s.running == 2)
    controller = ray.get_actor("controller", namespace="windlass")
    ray.kill(controller, no_restart=False)
    try:
        after = until(backend, group.key, lambda s: s.running == 2)
        assert after == before
    finally:
        backend.stop(group.key)
