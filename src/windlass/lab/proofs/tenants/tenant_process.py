"""A control process for the proof: `python -m windlass.lab.proofs.tenants.tenant_process --home H --users A-B`.

It is `windlass control` on the local backend but for one thing: its jobs become guests (hostile_job.py) that
do the deed in the name of the job, "DEED.AMOUNT.ANYTHING", within the walls of their tenant.
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
    house = TenantRegistry(home, users=users, python=args.python)
    house.prepare()
    setting = ControlPlaneConfig(
        home=home,
        state=plane_url(home),
        backend_name="local",
        connect=lambda: LocalBackend(home / LOCAL),
        group_of=house.walled(guest_group, lambda entry: entry.tenant, "local"),
        tenants=house,
        min_run_s=MIN_RUN_S,
    )
    serve_control(home, "127.0.0.1", 0, lambda url, _: emit({"listening": {"url": url}}), setting)
    return 0


def guest_group(entry: JobEntry) -> Group:
    """Return the group of a guest that does the deed in its name."""
    deed, amount = entry.name.split(".")[:2]
    need = entry.need
    return Group(
        name=entry.group,
        module=HOSTILE_JOB,
        args=(deed, amount),
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
