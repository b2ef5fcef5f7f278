"""One machine's part of an elastic run, as a member of a group: `python -m windlass.elastic.agent_main FOLDER`.

It ends well once the run is over, however that ended. Asked to end before, as when its machine is drained,
it takes its workers with it and leaves the run to the others; its exit code lets the cluster start it again.
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
            f"{host}: the run's directory {folder} is not here",
            hint="all machines of a cluster need the same --home, on a directory that they share",
        )
    agent = Agent(AgentSite(folder, f"node{index}", host), _pass_over, leaves=True)
    try:
        agent.run()
    except WindlassError:
        if (folder / OVER).exists():
            return 0  # it was not this machine that failed
        raise
    return INTERRUPTED if agent.left else 0


def _pass_over(_event: dict[str, Any]) -> None:
    """What happens is in the run's journal, where whoever follows the run reads it."""


if __name__ == "__main__":
    run_entrypoint(main)
