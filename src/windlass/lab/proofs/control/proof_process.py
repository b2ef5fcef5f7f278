"""A control process for proofs: `python -m windlass.lab.proofs.control.proof_process --home H --port P`.

It is `windlass control` on the local backend, except that its jobs are recording jobs (recording_job.py),
whose duration is in the job file.
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
from windlass.control.plane.job_to_group import job_of
from windlass.control.plane.queued_job import JobEntry
from windlass.spec.processes import RECORDING_JOB
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint

FOLDER = "witnesses"
SECONDS = "WITNESS_SECONDS"
MIN_RUN_S = 0.5


def main(argv: list[str]) -> int:
    args = _parse(argv)
    home: Path = args.home
    setting = ControlPlaneConfig(
        home=home,
        state=plane_url(home, args.state),
        backend_name="local",
        connect=lambda: LocalBackend(home / LOCAL),
        group_of=lambda entry: recording_group(entry, home),
        min_run_s=MIN_RUN_S,
    )
    serve_control(home, "127.0.0.1", args.port, lambda url, _: emit({"listening": {"url": url}}), setting)
    return 0


def recording_group(entry: JobEntry, home: Path) -> Group:
    """Return the group of a recording job, with the duration from [cluster.env] of its job."""
    seconds = job_of(entry.text, home).cluster.env.get(SECONDS, "1")
    return Group(
        name=entry.group,
        module=RECORDING_JOB,
        args=(str(home / FOLDER / entry.group), seconds),
        tenant=entry.tenant,
        count=entry.members,
        resources=Resources(entry.need.cores),
        restart=Restart("on-failure", max_restarts=20, back_off_s=0.1),
        grace_s=5.0,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog="python -m windlass.lab.proofs.control.proof_process")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--state")
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
