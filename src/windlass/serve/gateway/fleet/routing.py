"""Routing: which version answers a name, and which of its replicas.

These are pure functions: replicas, their load and the random number are arguments.
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
"""Requests that share this many first tokens go to the same replica, for its prefix cache."""
MIN_MARGIN = 2


@dataclass(frozen=True, slots=True)
class ReplicaCandidate:
    """A replica that could take a request."""

    name: str
    busy: int
    """Answers running or waiting there."""
    slots: int

    @property
    def margin(self) -> int:
        """How much busier than another replica it may be before its warm prefix is not worth the wait."""
        return max(MIN_MARGIN, self.slots // 8)


def choose_replica(candidates: Sequence[ReplicaCandidate], key: bytes) -> ReplicaCandidate:
    """Return the replica that the key ranks highest, or the least busy one if that is much busier.

    Rendezvous hashing: every key ranks all replicas, so adding or removing one moves only its own keys.
    """
    if len(candidates) == 1:
        return candidates[0]
    ranked = sorted(candidates, key=lambda each: _weight(key, each.name), reverse=True)
    preferred, idlest = ranked[0], min(ranked, key=lambda each: each.busy)
    return preferred if preferred.busy <= idlest.busy + preferred.margin else idlest


def affinity(tenant: str, adapter: str, tokens: Sequence[int]) -> bytes:
    """Return the key of requests that can share a cached prefix."""
    first = tokens[:AFFINITY_TOKENS]
    return f"{tenant}\0{adapter}\0".encode() + struct.pack(f"<{len(first)}q", *first)


def choose_version(route: Route, alive: Collection[str], place: float) -> tuple[str, bool]:
    """Return the version that answers a bare name, and whether it is a standby for the wanted ones.

    `place`, in [0, 1), is the same for all requests of one conversation. Versions divide [0, 1) in their
    order, so a growing last version takes over conversations and loses none. If no version is alive, a wanted
    one is returned: its requests wait.
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
    """Hash a conversation to [0, 1)."""
    digest = blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "little") / (1 << 48)


def _weight(key: bytes, name: str) -> bytes:
    return blake2b(key, key=name.encode()[:64], digest_size=8).digest()
