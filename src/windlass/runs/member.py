"""One machine of a run whose home only the cluster sees: `python -m windlass.runs.member`.

    member 0 prepares the run and writes its path to a note -> all take part -> member 0 registers the result

The job file is in $WINDLASS_JOB. A cluster restarts members, so a note in the home records the state of this
launch: the runs before it, its own run, and whether that is over. A repeated launch gives the same --note: a
stopped run is resumed, and a run that is over is not repeated.

When interrupted, member 0 stops the run, which saves a checkpoint. The other members wait LEAVE_S for that,
because all members are interrupted when a Job is deleted; then they leave, as when their own node is drained.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from windlass.cluster.backend import GROUP, HOST, INDEX, label
from windlass.cluster.kubernetes.labels import LAUNCH
from windlass.cluster.training_group import JOB
from windlass.elastic.agent import Agent, AgentSite
from windlass.registry.versions import Registry
from windlass.runs.elastic_run import address_towards_leader, begin
from windlass.runs.follower import Follower
from windlass.runs.progress_line import ProgressLine
from windlass.runs.server_run import train_served
from windlass.runs.training import RunFolder, open_run, relaid, resumable, runs_of, train
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.home import home_dir
from windlass.spec.job import STATISTICS, Job
from windlass.spec.protocol.entrypoint import INTERRUPTED, EntrypointParser, run_entrypoint
from windlass.spec.read import read_job
from windlass.store.store_dir import StoreDir

LAUNCHES = "launches"
LEAVE_S = 30.0
"""Time for the run to end, before an interrupted member leaves it."""
NOTE_S = 15.0
"""Time for member 0 to note whether a stopped run is over for good."""
LOOK_S = 0.2


def main(argv: list[str]) -> int:
    """Do this machine's part of the run; return 0 once the run is over for good."""
    parser = EntrypointParser(prog="python -m windlass.runs.member")
    parser.add_argument("--start", choices=("new", "resume"), default="new")
    parser.add_argument("--workers", type=int, metavar="N", help="in all")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds to wait for member 0")
    parser.add_argument("--home")
    parser.add_argument("--note", metavar="NAME", help="of this launch (default: the cluster's)")
    args = parser.parse_args(argv)
    home, index = home_dir(args.home), int(os.environ.get(INDEX, "0"))
    note = StoreDir(home / LAUNCHES / (args.note or launch_name()))
    if note.exists("over.json"):
        return 0  # the run is over, and this member was restarted
    line = ProgressLine()
    if index:
        return attend(_await_folder(note, args.patience), note, line, index)
    job = _job()
    folder = _open(job, home, note, line, resume=args.start == "resume")
    note.write("run.json", json.dumps(str(folder.path)).encode())
    if folder.finished:
        return _register(folder, job, home, note, line)
    if not is_elastic(job):
        return train_alone(folder, job, home, note, line)
    if address_towards_leader(folder) is None:
        begin(folder, args.workers, nodes=args.nodes)
    return lead(folder, job, home, note, line)


def is_elastic(job: Job) -> bool:
    """Whether workers may join and leave; counted models and parameter servers run on one machine."""
    return job.model.family not in STATISTICS and job.sync.policy != "server"


def train_alone(folder: RunFolder, job: Job, home: Path, note: StoreDir, line: ProgressLine) -> int:
    """Train on this machine alone. When interrupted, the run saves; the next launch resumes it."""
    follower = Follower(line)
    served = job.sync.policy == "server"
    finished = train_served(folder, follower) if served else train(folder, follower)
    line.close()
    if finished:
        return _register(folder, job, home, note, line)
    line.say(f"run {folder.name} stopped at step {folder.step}")
    return INTERRUPTED


def lead(folder: RunFolder, job: Job, home: Path, note: StoreDir, line: ProgressLine) -> int:
    """Member 0: take part, register the result, and note that the run is over."""
    agent = MemberAgent(AgentSite(folder.path, "node0", os.environ[HOST]), Follower(line))
    finished = agent.run()
    line.close()
    if finished:
        return _register(folder, job, home, note, line)
    line.say(f"run {folder.name} stopped at step {folder.step}")
    if not agent.interrupted:
        note.write("over.json", b"{}")
        return 0
    return INTERRUPTED


def _register(folder: RunFolder, job: Job, home: Path, note: StoreDir, line: ProgressLine) -> int:
    """Register the result of a finished run, once even if repeated, and note that the run is over."""
    registry, made = Registry(home), folder.result_digest
    found = [version for version in registry.versions(job.name) if version.manifest.digest == made]
    version = found[-1] if found else registry.register(job.name, folder.result)
    line.say(f"run {folder.name} is done: registered as {version}")
    note.write("over.json", b"{}")
    return 0


def attend(folder: Path, note: StoreDir, line: ProgressLine, index: int) -> int:
    """Any other member: take part until the run is over, or leave it when interrupted."""
    agent = Agent(AgentSite(folder, f"node{index}", os.environ[HOST]), lambda _: None, leave_after_s=LEAVE_S)
    if agent.run():
        return 0
    line.say(f"member {index}: the run was stopped, or continues without this machine")
    until = time.monotonic() + NOTE_S
    while not agent.left and time.monotonic() < until:
        if note.exists("over.json"):
            return 0
        time.sleep(LOOK_S)
    return INTERRUPTED


class MemberAgent(Agent):
    """An agent that knows whether its own machine was interrupted."""

    @property
    def interrupted(self) -> bool:
        return self._interruptions > 0


def launch_name() -> str:
    """Return the name of this launch, shared by its members and their restarts only."""
    return label(f"{os.environ.get(GROUP, 'group')} {os.environ.get(LAUNCH, '')}")


def _open(job: Job, home: Path, note: StoreDir, line: ProgressLine, *, resume: bool) -> RunFolder:
    """Return the run of this launch, also when the member is restarted."""
    if note.exists("run.json"):
        return relaid(RunFolder(Path(json.loads(note.read("run.json")))), job)
    before = [run.name for run in runs_of(home, job.name)]
    if not note.create("before.json", json.dumps(before).encode()):
        found = resumable(job, home)
        began = found is not None and found.name not in json.loads(note.read("before.json"))
        resume = began or resume
    return open_run(job, home, line, resume=resume)


def _await_folder(note: StoreDir, patience_s: float) -> Path:
    """Wait until member 0 has prepared the run."""
    until = time.monotonic() + patience_s
    while not note.exists("run.json"):
        if time.monotonic() > until:
            raise ProcessFailed(f"member 0 did not prepare a run within {patience_s:.0f} s")
        time.sleep(LOOK_S)
    return Path(json.loads(note.read("run.json")))


def _job() -> Job:
    if not os.environ.get(JOB):
        raise BadInput(f"${JOB} is not set", hint="the launcher puts the job file there")
    with tempfile.TemporaryDirectory(prefix="windlass-") as folder:
        path = Path(folder) / "job.toml"
        path.write_text(os.environ[JOB], encoding="utf-8")
        return read_job(path, [])


if __name__ == "__main__":
    run_entrypoint(main)
