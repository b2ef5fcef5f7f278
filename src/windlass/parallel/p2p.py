"""The wire between two stages of the asynchronous pipeline: messages in order, and nobody waits to send."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.device_mesh import Mesh

POSTED = 2
"""Messages that are waited for in advance: gloo sends only what is waited for."""
FORWARD, BACKWARD = 1, 2
"""Tags of messages; 0 is left to evaluation."""


class Neighbour:
    """The stage before or after."""

    def __init__(
        self, grid: Mesh, group: dist.ProcessGroup | None, at: int, shape: tuple[int, ...], tag: int
    ) -> None:
        self.rank, self.group = grid.peer(pp=at), group
        self._shape, self._device, self._tag = shape, grid.device, tag
        self._coming: deque[tuple[dist.Work, Tensor]] = deque()
        self._going: deque[tuple[dist.Work, Tensor]] = deque()
        self._max_going = 2 * grid.layout.pp + POSTED

    def take(self, coming: int) -> Tensor:
        """Return the next message; `coming` more, with it, are sure to be sent."""
        while len(self._coming) < min(coming, 1 + POSTED):
            message = torch.empty(self._shape, device=self._device)
            work = dist.irecv(message, self.rank, group=self.group, tag=self._tag)
            assert work is not None
            self._coming.append((work, message))
        work, message = self._coming.popleft()
        work.wait()
        return message

    def send(self, message: Tensor, tag: int) -> None:
        """Begin to send. A message is kept until it is gone; by the window, old ones are."""
        message = message.contiguous()
        work = dist.isend(message, self.rank, group=self.group, tag=tag)
        assert work is not None
        self._going.append((work, message))
        while len(self._going) > self._max_going:
            self._going.popleft()[0].wait()

    def drain(self) -> None:
        while self._going:
            self._going.popleft()[0].wait()
