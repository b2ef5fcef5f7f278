"""The agent of one machine as a member of a group: `python -m windlass.elastic.agent_main FOLDER`.

It exits with 0 once the run is over, whatever the outcome. Stopped before that (its machine is drained), it
stops its workers and leaves the run to the other machines; its exit code makes the cluster restart it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from windlass.cluster.backend import HOST, INDEX
from windlass.elastic.agent import Agent, AgentSite
from windlass.spec.errors import BadInput, WindlassError
from windlass.spec.protocol.elastic import OVER
from windlass.spec.protocol.entrypoint import INTERRUPTED, EntrypointParser, run_entrypoint
from windlass.spec.run import RUN_FILE


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.elastic.agent_main")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    index, host = os.environ[INDEX], os.environ[HOST]
    if not (folder / RUN_FILE).exists():
        raise BadInput(
            f"{host}: the run's directory {folder} does not exist",
            hint="all machines of a cluster need the same --home, on a shared file system",
        )
    agent = Agent(AgentSite(folder, f"node{index}", host), _ignore, leaves=True)
    try:
        agent.run()
    except WindlassError:
        if (folder / OVER).exists():
            return 0  # the run failed, not this machine
        raise
    return INTERRUPTED if agent.left else 0


def _ignore(_event: dict[str, Any]) -> None:
    """Events are in the run's journal, where the command that follows the run reads them."""


if __name__ == "__main__":
    run_entrypoint(main)
