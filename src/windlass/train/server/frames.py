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
"""Limit for the first frame of a connection, before the client is authenticated; it has no body."""
BUFFERS = 512
"""Buffers per system call; the kernel takes at most 1024."""
TYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64}
NAMES = {dtype: name for name, dtype in TYPES.items()}
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

Arrays = Mapping[str, Tensor]


class Frame(NamedTuple):
    """A message: a JSON head, and arrays by name."""

    head: dict[str, Any]
    arrays: dict[str, Tensor]


class BadFrame(ConnectionError):
    """The received bytes are no frame: the other end is not a parameter server or worker, or is broken."""


def buffers_of(head: Mapping[str, Any], arrays: Arrays) -> list[memoryview]:
    """Return the bytes of a frame, without copying the arrays."""
    listed = [[name, NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in arrays.items()]
    header = json.dumps({**head, "arrays": listed} if listed else dict(head)).encode()
    bodies = [_padded(tensor) for tensor in arrays.values()]
    size = sum(part.nbytes for parts in bodies for part in parts)
    first = memoryview(PREFIX.pack(MAGIC, len(header), size) + header)
    return [first, *(part for parts in bodies for part in parts if part.nbytes)]


def read_frame(
    read_into: Callable[[memoryview], None], *, max_head: int = MAX_HEAD_BYTES, body: bool = True
) -> Frame:
    """Read one frame. `read_into` fills a buffer from the source and raises at its end."""
    prefix = bytearray(PREFIX.size)
    read_into(memoryview(prefix))
    magic, head_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC or head_bytes > max_head or (body_bytes and not body):
        raise BadFrame("not a frame of a parameter server")
    header = bytearray(head_bytes)
    read_into(memoryview(header))
    buffer = torch.empty(body_bytes, dtype=torch.uint8)
    if body_bytes:
        read_into(buffer.numpy().data)
    return _opened(bytes(header), buffer)


def _opened(header: bytes, buffer: Tensor) -> Frame:
    try:
        head = json.loads(header)
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
    """One end of a connection that carries frames both ways. Every failure is a ConnectionError."""

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

    def call(self, arrays: Arrays | None = None, /, **head: Any) -> Frame:
        """Send a request and return the reply."""
        self.send(arrays, **head)
        return self.receive()

    def clear_timeout(self) -> None:
        """Wait without limit from here on: keepalive detects a lost peer, and a long silence is normal."""
        self._socket.settimeout(None)

    def close(self) -> None:
        """Close the connection; wakes a thread that waits on it."""
        with suppress(OSError):  # the peer has closed it first
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
    """Turn every socket error into a ConnectionError."""
    try:
        yield
    except ConnectionError:
        raise
    except (OSError, ValueError) as error:
        raise ConnectionResetError(str(error)) from error


def _rest(buffers: list[memoryview], sent: int) -> Iterator[memoryview]:
    """Yield the buffers that were not sent yet."""
    for buffer in buffers:
        if sent < buffer.nbytes:
            yield buffer[sent:] if sent > 0 else buffer
        sent = max(0, sent - buffer.nbytes)
