"""Which version answers a name, and which of its replicas.

All of it is pure: who is alive and how busy is an argument, as is the one random number.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from windlass.spec.protocol.routing import Route

AFFINITY_TOKENS = 64
"""Requests that begin with the same tokens, so many of them, like to meet: they share a prefix."""
MIN_MARGIN = 2


@dataclass(frozen=True, slots=True)
class ReplicaCandidate:
    """A replica that could be asked."""

    name: str
    busy: int
    """Answers that it makes or that wait there."""
    slots: int

    @property
    def margin(self) -> int:
        """By how much it may be busier than another before a warm prefix is not worth the wait."""
        return max(MIN_MARGIN, self.slots // 8)


def choose_replica(candidates: Sequence[ReplicaCandidate], key: bytes) -> ReplicaCandidate:
    """Take the replica that the key likes best, or the least busy where that one is much busier.

    Highest random weight: every key ranks all replicas, so one that comes or goes moves only its own keys.
    """
    if len(candidates) == 1:
        return candidates[0]
    ranked = sorted(candidates, key=lambda each: _weight(key, each.name), reverse=True)
    liked, least = ranked[0], min(ranked, key=lambda each: each.busy)
    return liked if liked.busy <= least.busy + liked.margin else least


def affinity(tenant: str, adapter: str, tokens: Sequence[int]) -> bytes:
    """Return what requests have in common that would profit from one another's prefix."""
    first = tokens[:AFFINITY_TOKENS]
    return f"{tenant}\0{adapter}\0".encode() + struct.pack(f"<{len(first)}q", *first)


def choose_version(route: Route, alive: Collection[str], place: float) -> tuple[str, bool]:
    """Return the version that answers a bare name, and whether it only stands in for the wanted ones.

    `place`, in [0, 1), is the same for all requests of one conversation. Versions lie side by side in
    their order, so a growing last one takes conversations over and gives none back. Without any that is
    alive the first wanted one is returned: its requests wait.
    """
    wanted = {version: weight for version, weight in route.weights.items() if weight > 0}
    able = {version: weight for version, weight in wanted.items() if version in alive}
    if not able:
        for version in route.standby:
            if version in alive:
                return version, True
        able = wanted or dict.fromkeys(route.weights or route.standby, 1.0)
    versions = list(able)
    ends = list(itertools.accumulate(able.values()))
    at = bisect.bisect_right(ends, place * ends[-1])
    version = versions[min(at, len(versions) - 1)]
    return version, version not in route.weights


def place_of(conversation: str) -> float:
    """Return where a conversation lies between 0 and 1."""
    digest = blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "little") / (1 << 48)


def _weight(key: bytes, name: str) -> bytes:
    return blake2b(key, key=name.encode()[:64], digest_size=8).digest()
