"""Point-to-point messages between stages of the asynchronous pipeline: in order, and sends do not block."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.device_mesh import Mesh

POSTED = 2
"""Receives that are posted in advance: gloo sends only when the receive is posted."""
FORWARD, BACKWARD = 1, 2
"""Tags of messages; 0 is for evaluation."""


class Neighbour:
    """The stage before or after this one."""

    def __init__(
        self, grid: Mesh, group: dist.ProcessGroup | None, at: int, shape: tuple[int, ...], tag: int
    ) -> None:
        self.rank, self.group = grid.peer(pp=at), group
        self._shape, self._device, self._tag = shape, grid.device, tag
        self._coming: deque[tuple[dist.Work, Tensor]] = deque()
        self._sending: deque[tuple[dist.Work, Tensor]] = deque()
        self._max_sending = 2 * grid.layout.pp + POSTED

    def take(self, coming: int) -> Tensor:
        """Return the next message; `coming` messages, including this one, are sure to be sent."""
        while len(self._coming) < min(coming, 1 + POSTED):
            message = torch.empty(self._shape, device=self._device)
            work = dist.irecv(message, self.rank, group=self.group, tag=self._tag)
            assert work is not None
            self._coming.append((work, message))
        work, message = self._coming.popleft()
        work.wait()
        return message

    def send(self, message: Tensor, tag: int) -> None:
        """Start to send. Messages are kept until sent; waits for the oldest if too many are pending."""
        message = message.contiguous()
        work = dist.isend(message, self.rank, group=self.group, tag=tag)
        assert work is not None
        self._sending.append((work, message))
        while len(self._sending) > self._max_sending:
            self._sending.popleft()[0].wait()

    def drain(self) -> None:
        while self._sending:
            self._sending.popleft()[0].wait()
