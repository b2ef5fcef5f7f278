"""One machine of a run that a cluster starts: `windlass train`, told by the environment who it is.

    python -m windlass.cli.train_member --start new --workers 2 --nodes 4 --rendezvous run-0.run:29400

The job file is in $WINDLASS_JOB, this machine's number in $WINDLASS_INDEX. A cluster starts members again, so
what was begun under this launch is gone on with, and what is over stays over: a note in the home says with
which runs the launch began.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from windlass.cli.home import home_of
from windlass.cli.main import main as command
from windlass.cluster.backend import GROUP, INDEX, label
from windlass.cluster.on_kubernetes.labels import LAUNCH
from windlass.cluster.on_kubernetes.render import JOB
from windlass.operate.runs import resumable, runs_of
from windlass.spec.door import DoorParser, run_door
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.spec.read import read_job
from windlass.store.place import Place

LAUNCHES = "launches"


def main(argv: list[str]) -> int:
    """Do this machine's part of the run; return the exit code of `windlass train`."""
    parser = DoorParser(prog="windlass.cli.train_member")
    parser.add_argument("--start", choices=("new", "resume"), default="new")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rendezvous")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--home")
    args = parser.parse_args(argv)
    path = _job_file()
    job, home = read_job(path, []), home_of(args)
    note = Place(home / LAUNCHES / launch_name())
    if note.exists("over.json"):
        return 0  # the others ended well, and this one was started again
    again = _begun(note, job, home)
    code = command(train_command(args, path, home, resume=again or args.start == "resume"))
    if code == 0 and _index() == 0:
        note.write("over.json", b"{}")
    return code


def train_command(args: argparse.Namespace, path: Path, home: Path, *, resume: bool) -> list[str]:
    """Return the arguments of `windlass train` for this machine."""
    told = ["train", str(path), "--home", str(home), "--elastic", "--workers", str(args.workers)]
    if args.nodes > 1:
        told += ["--nodes", str(args.nodes), "--node-rank", str(_index())]
        told += ["--rendezvous", str(args.rendezvous), "--patience", str(args.patience)]
    return [*told, "--resume"] if resume else told


def launch_name() -> str:
    """Name this launch of the group: the same for its members and their restarts, and for nobody else."""
    return label(f"{os.environ.get(GROUP, 'group')} {os.environ.get(LAUNCH, '')}")


def _begun(note: Place, job: Job, home: Path) -> bool:
    """Whether this launch has an unfinished run already; the first to look notes which runs were before."""
    before = [run.name for run in runs_of(home, job.name)]
    if note.create("before.json", json.dumps(before).encode()):
        return False
    earlier = set(json.loads(note.read("before.json")))
    found = resumable(job, home)
    return found is not None and found.name not in earlier


def _index() -> int:
    return int(os.environ.get(INDEX, "0"))


def _job_file() -> Path:
    if not os.environ.get(JOB):
        raise BadInput(f"${JOB} is not set", hint="the launcher puts the job file there")
    path = Path(tempfile.mkdtemp(prefix="windlass-")) / "job.toml"
    path.write_text(os.environ[JOB], encoding="utf-8")
    return path


if __name__ == "__main__":
    run_door(main)
