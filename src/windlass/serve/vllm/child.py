"""The vLLM server as a child process: its command line, health check and end.

It listens on a loopback port with a key that only this process knows, downloads nothing and sends no usage
statistics. It has a session of its own, so that its own children can be killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from windlass.spec.errors import BadInput, NotFound, ProcessFailed

POLL_S = 0.2
GRACE_S = 15.0
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts as --max-lora-rank."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class VllmCommand:
    """The vLLM server to start."""

    executable: str
    model: Path
    name: str
    slots: int
    adapters: dict[str, Path] = field(default_factory=dict)
    rank: int = 0
    """The highest rank among the adapters."""
    extra: Sequence[str] = ()

    def command(self, port: int) -> list[str]:
        """Return the command line; the user's options come last and so override ours."""
        command = [find_executable(self.executable), "serve", str(self.model)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", self.name]
        command += ["--max-num-seqs", str(self.slots), "--scheduling-policy", "priority"]
        # Without this, the model's generation_config.json would change the defaults of requests.
        command += ["--generation-config", "vllm"]
        if self.adapters:
            command += ["--enable-lora", "--max-lora-rank", str(_rank_class(self.rank)), "--lora-modules"]
            command += [f"{name}={path}" for name, path in self.adapters.items()]
        return [*command, *self.extra]


def find_executable(name: str) -> str:
    """Return the path of the program; raise NotFound with what to install."""
    found = shutil.which(name)
    if found is None:
        raise NotFound(
            f"'{name}' is not a program on PATH",
            hint="install vLLM on a machine with a GPU (pip install vllm), or give --engine-executable PATH",
        )
    return found


def split_options(text: str) -> list[str]:
    """Split a line of options as a shell would."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--engine-args: {error}: {text}", hint="quote as in a shell") from None


class VllmProcess:
    """A running vLLM server."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, key: str) -> None:
        self._process = process
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {key}"},
            # An answer may wait long for its first token; a server that has ended closes the connection.
            timeout=httpx.Timeout(None, connect=5.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def until_ready(self) -> dict[str, Any]:
        """Wait until it is healthy; return its description of the model. Raise if the process ends."""
        while not await self._is_healthy():
            self.check()
            await asyncio.sleep(POLL_S)
        try:
            models = (await self.http.get("/v1/models")).raise_for_status().json()
            return dict(models["data"][0])
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
            raise ProcessFailed("vLLM's reply to GET /v1/models does not follow its API") from None

    async def ended(self) -> None:
        """Return when the process has ended."""
        await self._process.wait()

    def check(self) -> None:
        """Raise if it has ended."""
        code = self._process.returncode
        if code is not None:
            raise ProcessFailed(f"vLLM ended with code {code}", hint="its output is in the log of the engine")

    async def stop(self) -> None:
        """Terminate it, then kill it and all processes that it started."""
        await self.http.aclose()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _is_healthy(self) -> bool:
        try:
            return (await self.http.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False


async def start(command: VllmCommand) -> VllmProcess:
    """Start the server process; it is not ready yet when this returns."""
    port, key = _free_port(), secrets.token_urlsafe(32)
    # Our allocator settings are not for other programs.
    inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    process = await asyncio.create_subprocess_exec(
        *command.command(port),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,  # ours is for events; the output of vLLM goes to the log
        stderr=None,
        start_new_session=True,
        preexec_fn=_die_with_parent,
        env={
            **inherited,
            "VLLM_API_KEY": key,
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )
    return VllmProcess(process, port, key)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rank_class(rank: int) -> int:
    for size in LORA_RANKS:
        if rank <= size:
            return size
    raise BadInput(f"an adapter has rank {rank}; vLLM supports at most {LORA_RANKS[-1]}")
