"""Gets a request answered: by one of several sites, tried again where that helps, within one deadline.

    order the sites -> open -> answered?  -> yes: the answer
         ^                        | no: remember it of the site
         `--- another site, or a wait ---'

All of it is a call (effects.py), so the same code serves blocking and awaiting clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from windlass.sdk import sites as circuits
from windlass.sdk.effects import (
    Broken,
    Call,
    Open,
    ReplyStarted,
    Request,
    close,
    draw_share,
    look,
    read,
    send,
    wait,
)
from windlass.sdk.failures import ApiFailure, DeadlinePassed, ServiceFailed, Unreachable, failure_of
from windlass.sdk.retries import Retries, decide, is_passing
from windlass.sdk.sites import Circuit, ServerSite, SiteMemory

CONNECT_S = 5.0
SWITCH_S = 0.6
"""To connect, where another site has not been asked yet."""
SILENCE_S = 25.0
"""A stream's server says something every 10 s, even if there is nothing to say."""
MAX_DEADLINE_MS = 86_400_000

T = TypeVar("T")


@dataclass
class Attempt:
    """One call on its way: until when it is to be done, and what has been tried."""

    until: float | None
    elsewhere: frozenset[str] = frozenset()
    """Codes of refusals that count for the site that told them alone."""
    tried: int = 0
    """In a row, without anything coming of it."""
    asked: set[str] = field(default_factory=set)
    """Sites that failed since the last wait."""
    site: ServerSite | None = None

    def left_s(self, now: float) -> float | None:
        return None if self.until is None else self.until - now

    def progressed(self) -> None:
        """Something new has come: what failed before does not count any more."""
        self.tried = 0
        self.asked.clear()


@dataclass(frozen=True)
class HttpReply:
    """An answer to a request; that of a stream has no body yet."""

    head: ReplyStarted
    site: ServerSite
    body: bytes = b""

    @property
    def request_id(self) -> str:
        return self.head.headers.get("x-request-id", "")

    def read(self, reader: Callable[[dict[str, Any]], T]) -> T:
        """Read the body as what it should be; what is something else comes from somebody else's server."""
        return understood(self.head.url, reader, self.body)


def understood(url: str, reader: Callable[[dict[str, Any]], T], told: bytes | str) -> T:
    """Read JSON as what it should be."""
    try:
        return reader(json.loads(told))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ServiceFailed(f"{url}: answered, and not as Windlass does") from None


class RequestRunner:
    """Asks sites, and remembers how they are.

    Several threads may share it: each remembered fact is one assignment, and a lost one costs a try at most.
    """

    def __init__(
        self,
        sites: Sequence[ServerSite],
        *,
        headers: Mapping[str, str],
        retries: Retries,
        circuit: Circuit,
        absent: str,
    ) -> None:
        self.sites = sites
        self.known: dict[str, SiteMemory] = {}
        self._headers = headers
        self._retries = retries
        self._circuit = circuit
        self._absent = absent
        self._keyless: set[str] = set()
        """Sites that keep no answers, and so take no Idempotency-Key."""

    def trip(self, deadline_s: float | None) -> Call[Attempt]:
        """Begin a call that is to be done within so many seconds."""
        now = yield from look()
        return Attempt(None if deadline_s is None else now + deadline_s)

    def ask(self, request: Request, trip: Attempt) -> Call[HttpReply]:
        """Return the first answer that is one: whole, or begun if it streams."""
        while True:
            site = yield from self._choose(trip)
            outcome = yield from self._attempt(request, trip, site)
            if isinstance(outcome, HttpReply):
                self.known[site.url] = circuits.answered(self.known.get(site.url, SiteMemory()))
                return outcome
            yield from self.failed(request, trip, outcome)

    def failed(self, request: Request, trip: Attempt, failure: ApiFailure) -> Call[None]:
        """Remember a failure, and wait until the next try; raise it when there is to be none."""
        now = yield from look()
        assert trip.site is not None
        self._remember(trip.site, failure, now)
        left_s = trip.left_s(now)
        if left_s is not None and left_s <= 0:
            raise self._late(failure) from failure
        trip.tried += 1
        trip.asked.add(trip.site.url)
        elsewhere = len(trip.asked) < len(self.sites)
        if elsewhere and failure.code in trip.elsewhere:
            return
        drawn = yield from draw_share()
        wait_s = decide(
            self._retries,
            failure,
            tried=trip.tried,
            left_s=left_s,
            draw=drawn,
            repeats=request.repeats,
            elsewhere=elsewhere,
        )
        if wait_s is None:
            raise failure
        if not elsewhere:
            trip.asked.clear()
            yield from wait(wait_s)

    def more(self, trip: Attempt) -> Call[bytes | ApiFailure]:
        """Wait for more of a stream; b"" is its end."""
        now = yield from look()
        left_s = trip.left_s(now)
        if left_s is not None and left_s <= 0:
            raise self._late(None)
        assert trip.site is not None
        received = yield from read(left_s)
        return self._unreachable(trip.site, received) if isinstance(received, Broken) else received

    def _choose(self, trip: Attempt) -> Call[ServerSite]:
        """Return the best site that has not failed since the last wait."""
        draws = [0.0] * len(self.sites)
        for place in range(len(draws)):
            draws[place] = yield from draw_share()
        now = yield from look()
        ordered = circuits.order(self.sites, self.known, self._circuit, now=now, draws=draws)
        site = next((site for site in ordered if site.url not in trip.asked), ordered[0])
        self.known[site.url] = circuits.asked(self.known.get(site.url, SiteMemory()), self._circuit, now)
        trip.site = site
        return site

    def _attempt(self, request: Request, trip: Attempt, site: ServerSite) -> Call[HttpReply | ApiFailure]:
        """Ask one site once; once more if it turns out to keep no answers."""
        keyed = request.once is not None and site.url not in self._keyless
        outcome = yield from self._send(request, trip, site)
        if keyed and isinstance(outcome, ApiFailure) and outcome.code == "invalid_header":
            self._keyless.add(site.url)
            outcome = yield from self._send(request, trip, site)
        return outcome

    def _send(self, request: Request, trip: Attempt, site: ServerSite) -> Call[HttpReply | ApiFailure]:
        now = yield from look()
        left_s = trip.left_s(now)
        if left_s is not None and left_s <= 0:
            raise self._late(None)
        others = len({*trip.asked, site.url}) < len(self.sites)
        head = yield from send(self._opening(request, site, left_s, others=others))
        if isinstance(head, Broken):
            return self._unreachable(site, head)
        if request.streams and head.status < 400:
            return HttpReply(head, site)
        body = yield from self._body(trip)
        yield from close()
        if isinstance(body, Broken):
            return self._unreachable(site, body)
        if head.status >= 400:
            return failure_of(head.status, head.headers, body, site.url)
        return HttpReply(head, site, body)

    def _body(self, trip: Attempt) -> Call[bytes | Broken]:
        parts: list[bytes] = []
        while True:
            now = yield from look()
            left_s = trip.left_s(now)
            if left_s is not None and left_s <= 0:
                yield from close()
                raise self._late(None)
            received = yield from read(left_s)
            if isinstance(received, Broken):
                return received
            if not received:
                return b"".join(parts)
            parts.append(received)

    def _opening(self, request: Request, site: ServerSite, left_s: float | None, *, others: bool) -> Open:
        headers = {**self._headers, **request.headers}
        if request.timed and left_s is not None:
            headers["x-deadline-ms"] = str(max(1, min(MAX_DEADLINE_MS, round(left_s * 1000))))
        if request.once is not None and site.url not in self._keyless:
            headers["idempotency-key"] = request.once
        bounds = [bound for bound in (left_s, SILENCE_S if request.streams else None) if bound is not None]
        patience_s = SWITCH_S if others else CONNECT_S
        connect_s = patience_s if left_s is None else min(patience_s, left_s)
        silence_s = min(bounds) if bounds else None
        return Open(site.url + request.path, request, headers, connect_s, silence_s)

    def _remember(self, site: ServerSite, failure: ApiFailure, now: float) -> None:
        """Keep what a failure says of its site: a site that refuses a request works."""
        health = self.known.get(site.url, SiteMemory())
        if failure.retry_after_s is not None:
            self.known[site.url] = circuits.busy(health, now, failure.retry_after_s)
        elif is_passing(failure):
            self.known[site.url] = circuits.failed(health, self._circuit, now)
        else:
            self.known[site.url] = circuits.answered(health)

    def _unreachable(self, site: ServerSite, broken: Broken) -> Unreachable:
        return Unreachable(f"{site.url}: {broken.reason}", hint=self._absent, sent=broken.sent)

    def _late(self, failure: ApiFailure | None) -> DeadlinePassed:
        if isinstance(failure, DeadlinePassed):
            return failure
        said = "" if failure is None else f"; the last try: {failure.message}"
        return DeadlinePassed(f"the deadline passed before the answer was whole{said}")
