"""A control process for the proof: `python -m windlass.lab.proofs.tenants.tenant_process --home H ...`.

It is `windlass control` on the local backend, except that its jobs are hostile jobs (hostile_job.py): the
name of a job, "ATTACK.AMOUNT.ANYTHING", says what it does, in the sandbox of its tenant.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cluster.backend import Group, Resources, Restart
from windlass.cluster.backends import LOCAL
from windlass.cluster.local.local_backend import LocalBackend
from windlass.control.api.control_server import serve_control
from windlass.control.plane.control_plane import ControlPlaneConfig
from windlass.control.plane.job_store import plane_url
from windlass.control.plane.queued_job import JobEntry
from windlass.control.tenants.tenant_registry import TenantRegistry, users_from
from windlass.spec.processes import HOSTILE_JOB
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint

MIN_RUN_S = 0.5


def main(argv: list[str]) -> int:
    args = _parse(argv)
    home: Path = args.home
    users = None if args.users is None else users_from(args.users)
    registry = TenantRegistry(home, users=users, python=args.python)
    registry.prepare()
    setting = ControlPlaneConfig(
        home=home,
        state=plane_url(home),
        backend_name="local",
        connect=lambda: LocalBackend(home / LOCAL),
        group_of=registry.isolated(hostile_group, lambda entry: entry.tenant, "local"),
        tenants=registry,
        min_run_s=MIN_RUN_S,
    )
    serve_control(home, "127.0.0.1", 0, lambda url, _: emit({"listening": {"url": url}}), setting)
    return 0


def hostile_group(entry: JobEntry) -> Group:
    """Return the group of a hostile job that makes the attack in its name."""
    attack, amount = entry.name.split(".")[:2]
    need = entry.need
    return Group(
        name=entry.group,
        module=HOSTILE_JOB,
        args=(attack, amount),
        tenant=entry.tenant,
        count=entry.members,
        resources=Resources(need.cores, need.memory_bytes or None),
        restart=Restart("never"),
        grace_s=1.0,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog="python -m windlass.lab.proofs.tenants.tenant_process")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--users")
    parser.add_argument("--python", default="")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
