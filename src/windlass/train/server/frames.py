"""Frames: a head of JSON and arrays of numbers, on a connection and in a log (docs/formats/server.md).

    magic "WLF1" | length of the head, u32 | length of the body, u64 | head | body

All numbers are little-endian. The head's `arrays` lists name, type and shape of each array; the body holds
them one after the other, each filled up with zeros to a multiple of 64 bytes. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAGIC = b"WLF1"
PREFIX = struct.Struct("<4sIQ")
ALIGN = 64
MAX_HEAD_BYTES = 1 << 24
FIRST_HEAD_BYTES = 1 << 12
"""Of a frame from somebody who has not said yet who they are; it has no body."""
BUFFERS = 512
"""Handed to the kernel at once; it takes 1024."""
TYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64}
NAMES = {dtype: name for name, dtype in TYPES.items()}
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

Arrays = Mapping[str, Tensor]


class Frame(NamedTuple):
    """What was said: facts, and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, Tensor]


class BadFrame(ConnectionError):
    """What arrives is no frame: nobody of ours is there, or not any more."""


def buffers_of(head: Mapping[str, Any], arrays: Arrays) -> list[memoryview]:
    """Return the bytes of a frame, without copying the arrays."""
    listed = [[name, NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in arrays.items()]
    told = json.dumps({**head, "arrays": listed} if listed else dict(head)).encode()
    bodies = [_padded(tensor) for tensor in arrays.values()]
    size = sum(part.nbytes for parts in bodies for part in parts)
    first = memoryview(PREFIX.pack(MAGIC, len(told), size) + told)
    return [first, *(part for parts in bodies for part in parts if part.nbytes)]


def read_frame(
    read_into: Callable[[memoryview], None], *, max_head: int = MAX_HEAD_BYTES, body: bool = True
) -> Frame:
    """Read one frame from wherever `read_into` fills a buffer from; it raises when there is no more."""
    prefix = bytearray(PREFIX.size)
    read_into(memoryview(prefix))
    magic, head_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC or head_bytes > max_head or (body_bytes and not body):
        raise BadFrame("this is no frame of a parameter server")
    told = bytearray(head_bytes)
    read_into(memoryview(told))
    buffer = torch.empty(body_bytes, dtype=torch.uint8)
    if body_bytes:
        read_into(buffer.numpy().data)
    return _opened(bytes(told), buffer)


def _opened(told: bytes, buffer: Tensor) -> Frame:
    try:
        head = json.loads(told)
        arrays, at = dict[str, Tensor](), 0
        for name, kind, shape in head.pop("arrays", ()):
            size = TYPES[kind].itemsize * math.prod(shape)
            arrays[name] = buffer[at : at + size].view(TYPES[kind]).view(shape)
            at += -(-size // ALIGN) * ALIGN
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise BadFrame(f"a frame of a parameter server is damaged: {error}") from None
    if at != buffer.numel():
        raise BadFrame(f"a frame has {buffer.numel()} bytes of arrays, not {at}")
    return Frame(head, arrays)


def _padded(tensor: Tensor) -> tuple[memoryview, memoryview]:
    data = tensor.detach().contiguous().view(-1).numpy().data.cast("B")
    return data, memoryview(bytes(-data.nbytes % ALIGN))


class FrameConnection:
    """One end of a connection on which frames go both ways. Whatever fails is a ConnectionError."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.bytes_sent = self.bytes_received = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, arrays: Arrays | None = None, /, **head: Any) -> None:
        left = buffers_of(head, arrays or {})
        with _connected():
            while left:
                sent = self._socket.sendmsg(left[:BUFFERS])
                self.bytes_sent += sent
                left = list(_rest(left, sent))

    def receive(self, *, max_head: int = MAX_HEAD_BYTES, body: bool = True) -> Frame:
        with _connected():
            return read_frame(self._fill, max_head=max_head, body=body)

    def ask(self, arrays: Arrays | None = None, /, **head: Any) -> Frame:
        """Say something and wait for the answer."""
        self.send(arrays, **head)
        return self.receive()

    def patient(self) -> None:
        """Wait as long as it takes from here on: an end of the other is heard, its silence has reasons."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """End it, also for a thread that waits on it."""
        with suppress(OSError):  # the other was quicker
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _fill(self, view: memoryview) -> None:
        while view.nbytes:
            size = self._socket.recv_into(view)
            if size == 0:
                raise ConnectionResetError("the other end is gone")
            self.bytes_received += size
            view = view[size:]


@contextmanager
def _connected() -> Iterator[None]:
    """Any error of a socket is one of the connection."""
    try:
        yield
    except ConnectionError:
        raise
    except (OSError, ValueError) as error:
        raise ConnectionResetError(str(error)) from error


def _rest(buffers: list[memoryview], sent: int) -> Iterator[memoryview]:
    """Yield what was not sent yet."""
    for buffer in buffers:
        if sent < buffer.nbytes:
            yield buffer[sent:] if sent > 0 else buffer
        sent = max(0, sent - buffer.nbytes)
