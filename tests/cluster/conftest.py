"""Made-up ranks that do as they are told: by their run's directory, they learn who does what."""

import importlib.util
import json
import os
import secrets
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import windlass
from tests.cluster.kubernetes_double import ADMIN, Table, serving
from tests.cluster.kubernetes_node import running
from windlass.cluster.kubernetes.api import KubernetesApi
from windlass.cluster.kubernetes.kubeconfig import ClusterAccess
from windlass.cluster.kubernetes.kubernetes_backend import KubernetesBackend
from windlass.cluster.kubernetes.pod import PodSetting
from windlass.cluster.launch.launcher import free_port
from windlass.cluster.launch.local_ranks import RankTask
from windlass.lab.proofs.backends.ray_nodes import RayNodes

RANK = """
import json, os, signal, sys, time
from pathlib import Path
from windlass.spec.protocol.entrypoint import INTERRUPTED, EntrypointParser, emit, run_entrypoint
from windlass.spec.errors import BadInput
from windlass.spec.protocol.rank import add_member, member_of, apply_affinity

def main(argv):
    parser = EntrypointParser()
    parser.add_argument("door")
    parser.add_argument("folder", type=Path)
    add_member(parser)
    args = parser.parse_args(argv)
    member = member_of(args)
    apply_affinity(member)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    print("rank", member.rank, "speaks", file=sys.stderr, flush=True)
    starts = args.folder / f"starts-{member.rank}"
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    emit({"event": "up", "rank": member.rank, "pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)),
          "threads": os.environ.get("OMP_NUM_THREADS")})
    deeds = json.loads((args.folder / "deeds.json").read_text())[member.rank]
    for deed in deeds:
        if deed == "refuse":
            raise BadInput("no such thing", hint="try another")
        if deed == "lose":
            raise RuntimeError("Connection closed by peer")
        if deed == "crash":
            raise RuntimeError("a bug of ours")
        if deed == "crash once" and len(starts.read_text()) == 1:
            raise RuntimeError("a bug of ours")
        if deed == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if deed == "child":
            import subprocess
            emit({"event": "child", "pid": subprocess.Popen(["sleep", "600"]).pid})
        if deed == "warn":
            emit({"event": "warning", "message": "careful"})
        if deed == "sleep":
            time.sleep(600)
        if deed == "wait":
            while not asked:
                time.sleep(0.02)
            emit({"event": "stopped", "step": 7})
            return INTERRUPTED
        if isinstance(deed, float):
            time.sleep(deed)
    return 0

if __name__ == "__main__":
    run_entrypoint(main)
"""

MODULE = "made_up_rank"
Deed = str | float


@pytest.fixture(autouse=True)
def rank_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(textwrap.dedent(RANK))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., RankTask]:
    """Return a maker of tasks: `task(["wait"], [0.1, "die"])` has two ranks, and the second one dies."""

    def make(*deeds: list[Deed]) -> RankTask:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "deeds.json").write_text(json.dumps(deeds))
        return RankTask(str(folder), len(deeds), f"127.0.0.1:{free_port('127.0.0.1', secrets.randbits(30))}")

    return make


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayNodes]:
    """Three nodes of a real Ray, for all tests of a session: a start takes ten seconds and 0.9 GB."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray (the extra `ray`) is not installed")
    source = Path(windlass.__file__).parents[1]
    nodes = RayNodes(3, f"{source}:{Path(__file__).parent}")
    os.environ.update(nodes.environment)
    import ray  # reads its environment once

    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.close()
        for name in nodes.environment:
            os.environ.pop(name, None)


@pytest.fixture
def kubernetes_backend(tmp_path: Path) -> Iterator[KubernetesBackend]:
    """A double of a cluster, in which pods are processes; no Kubernetes can run here."""
    table = Table()
    with serving(table) as url, running(table, tmp_path):
        table.create("namespaces", {"apiVersion": "v1", "metadata": {"name": "contract"}})
        api = KubernetesApi(ClusterAccess(url, token=ADMIN))
        yield KubernetesBackend(api, PodSetting(namespace="contract", image="windlass:test"))
        api.close()
