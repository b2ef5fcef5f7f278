"""Submits training on this machine, as `windlass jobs submit` does; it continues when this program ends.

    run = submit("poems.toml", settings={"train.steps": 1000}).run        # "poems/1"
    with Jobs(url, key) as jobs:
        jobs.follow(run)

The command is started as a process, so no training code is loaded here. It does not work over the network,
because a job file names paths of its machine; see `queue` for that.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath

from windlass.spec.errors import AskedWrongly, ProcessFailed
from windlass.spec.processes import CLI

Value = bool | int | float | str
USER_ERROR = 2
MAX_SAID = 2000


@dataclass(frozen=True)
class Submitted:
    """A run that trains in the background."""

    run: str
    """NAME/NUMBER."""
    path: str
    pid: int


def submit(
    job: str | PathLike[str],
    *,
    settings: Mapping[str, Value] | None = None,
    workers: int | None = None,
    elastic: bool = False,
    resume: bool = False,
    home: str | PathLike[str] | None = None,
) -> Submitted:
    """Build the corpus of a job file, plan it and start training; return once it has started.

    submit("poems.toml", settings={"train.steps": 1000}, workers=2).run      # "poems/1"
    """
    command = command_of(job, settings or {}, workers, elastic=elastic, resume=resume, home=home)
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return submitted(done.returncode, done.stdout, done.stderr)


async def submit_async(
    job: str | PathLike[str],
    *,
    settings: Mapping[str, Value] | None = None,
    workers: int | None = None,
    elastic: bool = False,
    resume: bool = False,
    home: str | PathLike[str] | None = None,
) -> Submitted:
    """The same as submit(), for event loops."""
    command = command_of(job, settings or {}, workers, elastic=elastic, resume=resume, home=home)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    out, errors = await process.communicate()
    return submitted(process.returncode or 0, out, errors)


def command_of(
    job: str | PathLike[str],
    settings: Mapping[str, Value],
    workers: int | None,
    *,
    elastic: bool,
    resume: bool,
    home: str | PathLike[str] | None,
) -> list[str]:
    """Return the command line; pure."""
    command = [sys.executable, "-m", CLI, "jobs", "submit", fspath(job), "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    command += [] if workers is None else ["--workers", str(workers)]
    command += ["--elastic"] if elastic else []
    command += ["--resume"] if resume else []
    return command + ([] if home is None else ["--home", fspath(home)])


def submitted(code: int, out: bytes, errors: bytes) -> Submitted:
    """Parse the output of the command; pure."""
    try:
        result = json.loads(out)
    except ValueError:
        said = errors.decode("utf-8", "replace").strip()
        raise ProcessFailed(f"`windlass jobs submit` ended with {code}: {said[-MAX_SAID:]}") from None
    if "error" in result:
        kind = AskedWrongly if code == USER_ERROR else ProcessFailed
        raise kind(result["error"]["message"], hint=result["error"]["hint"])
    return Submitted(result["run"], result["path"], result["pid"])
