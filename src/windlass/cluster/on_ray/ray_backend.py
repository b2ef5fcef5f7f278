"""The client of a Ray cluster: calls the controller actor from any process that reaches the cluster."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import ray
from ray._private import services, worker
from ray.exceptions import RayError

from windlass.cluster.backend import ClusterState, Group, GroupStatus, check, group_bytes
from windlass.cluster.launch.local_process import error_of
from windlass.cluster.on_ray.ray_controller import RayController
from windlass.spec.errors import ProcessFailed
from windlass.spec.protocol.link import parse_address

CONTROLLER = "controller"
NAMESPACE = "windlass"
HEAD = {"node:__internal_head__": 0.001}
"""Places the controller on the head node: it is lost only together with Ray's own store."""
PATIENCE_S = 60.0
CONNECT_S = 5.0


class RayBackend:
    """The groups of one namespace of a Ray cluster."""

    def __init__(self, address: str | None = None, namespace: str | None = None) -> None:
        self._address, self._namespace = address or "auto", namespace or NAMESPACE

    def launch(self, group: Group) -> None:
        self._call("launch", group_bytes(check(group)))

    def observe(self, key: str) -> GroupStatus | None:
        status: GroupStatus | None = self._call("observe", key)
        return status

    def stop(self, key: str) -> None:
        self._call("stop", key)

    def scale(self, key: str, count: int) -> None:
        self._call("scale", key, count)

    def survey(self, tenant: str | None = None) -> ClusterState:
        survey: ClusterState = self._call("survey", tenant)
        return survey

    def _call(self, what: str, *args: Any) -> Any:
        """Call the controller; calls may be repeated, so Ray may retry when the actor died."""
        connect(self._address)
        try:
            reply = ray.get(self._controller().call.remote(what, *args), timeout=PATIENCE_S)
        except RayError as error:
            reason = str(error).partition("\n")[0]
            raise ProcessFailed(f"Ray at {self._address} did not answer: {reason}") from None
        if "error" in reply:
            raise error_of(reply["error"])
        return reply["reply"]

    def _controller(self) -> Any:
        return (
            ray.remote(RayController)
            .options(
                name=CONTROLLER,
                namespace=self._namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                resources=HEAD,
                max_restarts=-1,
                max_task_retries=-1,
            )
            .remote(self._namespace)
        )


def connect(address: str) -> None:
    """Connect this process to a Ray cluster, once, with Ray's usage reports disabled.

    Ray would retry an unreachable address for more than ten minutes, so test the connection first.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        found = services.get_ray_address_from_environment(address, None) if address == "auto" else address
        if found is None:
            raise ConnectionError("none runs on this machine")
        with socket.create_connection(parse_address(found), timeout=CONNECT_S):
            pass
        ray.init(address=found, log_to_driver=False, logging_level=logging.CRITICAL)
        worker._worker_logs_enabled = (
            False  # or messages about dead nodes would be mixed into our JSON output
        )
    except (OSError, RuntimeError, ValueError, RayError) as error:
        reason = str(error).partition("\n")[0]
        raise ProcessFailed(
            f"no Ray cluster at '{address}': {reason}",
            hint="start one: ray start --head --disable-usage-stats; [cluster] address says where it is",
        ) from None
