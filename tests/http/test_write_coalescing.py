"""What is written in one turn of the event loop goes out as one, and nothing is lost at the end."""

import asyncio
import socket

from windlass.http.write_coalescing import Corked


class Counted(asyncio.Transport):
    """A transport that counts its writes to a real socket."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__()
        self.end, self.writes = end, 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        self.end.sendall(data)

    def close(self) -> None:
        self.end.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.end.fileno() < 0


def test_parts_of_one_turn_are_one_write_in_their_order() -> None:
    async def play() -> tuple[int, int, bytes]:
        near, far = socket.socketpair()
        with far:
            transport = Counted(near)
            corked = Corked(transport, asyncio.get_running_loop())
            corked.write(b"head ")
            corked.write(b"body")
            held = corked.get_write_buffer_size()
            await asyncio.sleep(0)
            corked.write(b" more")
            corked.close()
            return held, transport.writes, far.recv(100)

    assert asyncio.run(play()) == (9, 2, b"head body more")


def test_what_it_does_not_do_itself_the_transport_does() -> None:
    async def play() -> tuple[bool, bool]:
        near, far = socket.socketpair()
        with far:
            corked = Corked(Counted(near), asyncio.get_running_loop())
            before = corked.is_closing()
            corked.close()
            return before, corked.is_closing()

    assert asyncio.run(play()) == (False, True)
