"""Chooses the cached shard to evict: four policies, pure, counted in bytes.

    lru   least recently used
    mru   most recently used
    lfu   least frequently used; among equals, as lru
    arc   between lru and lfu, adapting to the misses (Megiddo and Modha, FAST 2003)

The access pattern decides which is best. Training reads windows in a shuffled order, so every shard is as
likely as any other to be next, and without foresight the hit rate is limit / corpus, whatever the policy.
Evaluation reads shards in the order of the text, again and again: there lru, lfu and arc lose each shard
just before it is needed, while mru keeps what fits. Hit rates with half of 200 shards in the cache
(tests/corpus/remote/test_eviction.py):

                                        lru    lfu    mru    arc
    shuffled, three epochs              0.49   0.50   0.50   0.49
    in order, ten times                 0.00   0.00   0.45   0.00
    few shards read much more often     0.99   0.99   0.79   0.99

So mru is the default. That it keeps shards that are no longer read does no harm here, because shards of
corpora that no process has open are evicted first (`cache`). Use arc or lfu where some shards are read more
often than others.

A policy is a deterministic state machine without a clock: equal events give equal states, and `state` is
JSON, so that the processes of a machine can share one policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any


class LruOrder:
    """Names with their sizes, least recently used first."""

    def __init__(self, listed: Iterable[tuple[str, int]] = ()) -> None:
        self._sizes = OrderedDict((str(name), int(size)) for name, size in listed)
        self.bytes = sum(self._sizes.values())

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def listed(self) -> list[tuple[str, int]]:
        return list(self._sizes.items())

    def add(self, name: str, size: int) -> None:
        self.pop(name)
        self._sizes[name] = size
        self.bytes += size

    def pop(self, name: str) -> int:
        """Take a name out and return its size; 0 when it is not here."""
        size = self._sizes.pop(name, 0)
        self.bytes -= size
        return size

    def renew(self, name: str) -> None:
        self._sizes.move_to_end(name)

    def cut(self, max_bytes: float) -> None:
        """Drop the least recently used until the rest fits."""
        while self._sizes and self.bytes > max_bytes:
            self.pop(next(iter(self._sizes)))


class Policy(ABC):
    """The content of the cache and the order of eviction. The base keeps one list, by last use."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._row = LruOrder()

    @abstractmethod
    def victim(self, in_use: Container[str] = ()) -> str | None:
        """Return what to evict next; None when everything is in use."""

    @property
    def bytes(self) -> int:
        return self._row.bytes

    def __contains__(self, name: object) -> bool:
        return name in self._row

    def names(self) -> list[str]:
        return list(self._row)

    def touch(self, name: str) -> None:
        """Note a read; names that were evicted meanwhile are ignored."""
        if name in self._row:
            self._row.renew(name)

    def miss(self, name: str, size: int) -> None:  # noqa: B027
        """Note a miss, before room is made; most policies ignore it."""

    def admit(self, name: str, size: int) -> None:
        self._row.add(name, size)

    def evict(self, name: str) -> None:
        """Remove what `victim` chose."""
        self._row.pop(name)

    def forget(self, name: str) -> None:
        """Remove a name that was not evicted by `victim`, without adapting to it."""
        self._row.pop(name)

    def state(self) -> dict[str, Any]:
        return {"row": self._row.listed()}

    def restore(self, state: dict[str, Any]) -> None:
        self._row = LruOrder(state["row"])


class Lru(Policy):
    """Least recently used."""

    def victim(self, in_use: Container[str] = ()) -> str | None:
        return next((name for name in self._row if name not in in_use), None)


class Mru(Policy):
    """Most recently used."""

    def victim(self, in_use: Container[str] = ()) -> str | None:
        return next((name for name in reversed(self._row) if name not in in_use), None)


class Lfu(Policy):
    """Least frequently used since it was admitted."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._reads: dict[str, int] = {}

    def victim(self, in_use: Container[str] = ()) -> str | None:
        # min takes the first of equals, which is the least recently used.
        return min((n for n in self._row if n not in in_use), key=self._reads.__getitem__, default=None)

    def touch(self, name: str) -> None:
        super().touch(name)
        if name in self._row:
            self._reads[name] += 1

    def admit(self, name: str, size: int) -> None:
        super().admit(name, size)
        self._reads[name] = 1

    def evict(self, name: str) -> None:
        self.forget(name)

    def forget(self, name: str) -> None:
        super().forget(name)
        self._reads.pop(name, None)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "reads": self._reads}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._reads = {name: int(state["reads"][name]) for name in self._row}


class Arc(Policy):
    """Adaptive replacement: the names of the paper are kept.

    t1 holds what was read once, t2 what was read again; b1 and b2 remember what went out of them. A miss
    that b1 remembers says that t1 was too small, one that b2 remembers that t2 was: p, the bytes that t1
    should have, moves accordingly. The paper counts pages of one size; here every count is in bytes, which
    is the same when sizes are equal.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._t1, self._t2, self._b1, self._b2 = LruOrder(), LruOrder(), LruOrder(), LruOrder()
        self._p = 0.0
        self._from_b2 = False

    @property
    def bytes(self) -> int:
        return self._t1.bytes + self._t2.bytes

    @property
    def share(self) -> float:
        """The share of the limit for shards that were read once: p / c of the paper."""
        return self._p / self.limit_bytes

    def __contains__(self, name: object) -> bool:
        return name in self._t1 or name in self._t2

    def names(self) -> list[str]:
        return [*self._t1, *self._t2]

    def touch(self, name: str) -> None:
        if name in self:
            self._t2.add(name, self._t1.pop(name) or self._t2.pop(name))

    def miss(self, name: str, size: int) -> None:
        self._from_b2 = name in self._b2
        if name in self._b1:
            self._p += size * max(1.0, self._b2.bytes / max(1, self._b1.bytes))
        elif self._from_b2:
            self._p -= size * max(1.0, self._b1.bytes / max(1, self._b2.bytes))
        self._p = min(float(self.limit_bytes), max(0.0, self._p))

    def victim(self, in_use: Container[str] = ()) -> str | None:
        """REPLACE of the paper; falls back to the other list when the chosen one has nothing to evict."""
        once = self._t1.bytes > self._p or (self._from_b2 and self._t1.bytes == self._p)
        rows = (self._t1, self._t2) if once else (self._t2, self._t1)
        return next((name for row in rows for name in row if name not in in_use), None)

    def evict(self, name: str) -> None:
        rows, ghosts = (self._t1, self._b1) if name in self._t1 else (self._t2, self._b2)
        ghosts.add(name, rows.pop(name))

    def admit(self, name: str, size: int) -> None:
        """Add a name; trim so that t1 and b1 together cover one limit, and all four lists two."""
        known = bool(self._b1.pop(name)) | bool(self._b2.pop(name))
        self._t1.pop(name)
        (self._t2 if known else self._t1).add(name, size)
        self._from_b2 = False
        self._b1.cut(max(0, self.limit_bytes - self._t1.bytes))
        self._b2.cut(max(0, 2 * self.limit_bytes - self.bytes - self._b1.bytes))

    def forget(self, name: str) -> None:
        self._t1.pop(name)
        self._t2.pop(name)

    def state(self) -> dict[str, Any]:
        rows = (self._t1, self._t2, self._b1, self._b2)
        return {"rows": [row.listed() for row in rows], "p": self._p}

    def restore(self, state: dict[str, Any]) -> None:
        self._t1, self._t2, self._b1, self._b2 = (LruOrder(listed) for listed in state["rows"])
        self._p = min(float(self.limit_bytes), float(state["p"]))


POLICIES: dict[str, type[Policy]] = {"lru": Lru, "lfu": Lfu, "mru": Mru, "arc": Arc}


def make_room(policy: Policy, size: int, is_in_use: Callable[[str], bool]) -> tuple[list[str], bool]:
    """Evict until `size` more bytes fit; return what was evicted, and whether it was enough."""
    gone: list[str] = []
    in_use: set[str] = set()
    while policy.bytes + size > policy.limit_bytes:
        name = policy.victim(in_use)
        if name is None:
            return gone, False
        if is_in_use(name):
            in_use.add(name)
            continue
        policy.evict(name)
        gone.append(name)
    return gone, True
