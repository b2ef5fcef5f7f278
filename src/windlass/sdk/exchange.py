"""Sends a request to one of several sites, with retries, within one deadline.

    order the sites -> open -> answered?  -> yes: the reply
         ^                        | no: remember the failure of the site
         `--- another site, or a wait ---'

All of it is a call (`effects`), so the same code serves synchronous and asynchronous clients.
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
"""Timeout to connect, while another site has not been tried yet."""
SILENCE_S = 25.0
"""Maximum silence of a stream; servers send a comment every 10 s."""
MAX_DEADLINE_MS = 86_400_000

T = TypeVar("T")


@dataclass
class Attempt:
    """A call in progress: its deadline, and the sites tried so far."""

    until: float | None
    elsewhere: frozenset[str] = frozenset()
    """Error codes that concern only the site that sent them."""
    tried: int = 0
    """Failed tries in a row."""
    tried_sites: set[str] = field(default_factory=set)
    """Sites that failed since the last wait."""
    site: ServerSite | None = None

    def left_s(self, now: float) -> float | None:
        return None if self.until is None else self.until - now

    def progressed(self) -> None:
        """New data has arrived: earlier failures do not count any more."""
        self.tried = 0
        self.tried_sites.clear()


@dataclass(frozen=True)
class HttpReply:
    """The reply to a request; that of a stream has no body yet."""

    head: ReplyStarted
    site: ServerSite
    body: bytes = b""

    @property
    def request_id(self) -> str:
        return self.head.headers.get("x-request-id", "")

    def read(self, reader: Callable[[dict[str, Any]], T]) -> T:
        """Parse the body; raise ServiceFailed if it is not the reply of a Windlass server."""
        return understood(self.head.url, reader, self.body)


def understood(url: str, reader: Callable[[dict[str, Any]], T], text: bytes | str) -> T:
    """Parse JSON with `reader`; raise ServiceFailed if it does not fit."""
    try:
        return reader(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ServiceFailed(f"{url}: answered, but is not a Windlass server") from None


class RequestRunner:
    """Sends requests to sites, and remembers the health of each.

    Several threads may share it: each update is one assignment, and a lost update costs at most one try.
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
        """Sites that store no answers, and so accept no Idempotency-Key."""

    def begin(self, deadline_s: float | None) -> Call[Attempt]:
        """Begin a call with a deadline in seconds."""
        now = yield from look()
        return Attempt(None if deadline_s is None else now + deadline_s)

    def ask(self, request: Request, attempt: Attempt) -> Call[HttpReply]:
        """Return the first successful reply: complete, or started if it streams."""
        while True:
            site = yield from self._choose(attempt)
            outcome = yield from self._attempt(request, attempt, site)
            if isinstance(outcome, HttpReply):
                self.known[site.url] = circuits.answered(self.known.get(site.url, SiteMemory()))
                return outcome
            yield from self.failed(request, attempt, outcome)

    def failed(self, request: Request, attempt: Attempt, failure: ApiFailure) -> Call[None]:
        """Record a failure, and wait before the next try; raise it if there is none."""
        now = yield from look()
        assert attempt.site is not None
        self._remember(attempt.site, failure, now)
        left_s = attempt.left_s(now)
        if left_s is not None and left_s <= 0:
            raise self._late(failure) from failure
        attempt.tried += 1
        attempt.tried_sites.add(attempt.site.url)
        elsewhere = len(attempt.tried_sites) < len(self.sites)
        if elsewhere and failure.code in attempt.elsewhere:
            return
        drawn = yield from draw_share()
        wait_s = decide(
            self._retries,
            failure,
            tried=attempt.tried,
            left_s=left_s,
            draw=drawn,
            repeats=request.repeats,
            elsewhere=elsewhere,
        )
        if wait_s is None:
            raise failure
        if not elsewhere:
            attempt.tried_sites.clear()
            yield from wait(wait_s)

    def more(self, attempt: Attempt) -> Call[bytes | ApiFailure]:
        """Wait for more of a stream; b"" is its end."""
        now = yield from look()
        left_s = attempt.left_s(now)
        if left_s is not None and left_s <= 0:
            raise self._late(None)
        assert attempt.site is not None
        received = yield from read(left_s)
        return self._unreachable(attempt.site, received) if isinstance(received, Broken) else received

    def _choose(self, attempt: Attempt) -> Call[ServerSite]:
        """Return the best site that has not failed since the last wait."""
        draws = [0.0] * len(self.sites)
        for place in range(len(draws)):
            draws[place] = yield from draw_share()
        now = yield from look()
        ordered = circuits.order(self.sites, self.known, self._circuit, now=now, draws=draws)
        site = next((site for site in ordered if site.url not in attempt.tried_sites), ordered[0])
        self.known[site.url] = circuits.call_started(
            self.known.get(site.url, SiteMemory()), self._circuit, now
        )
        attempt.site = site
        return site

    def _attempt(self, request: Request, attempt: Attempt, site: ServerSite) -> Call[HttpReply | ApiFailure]:
        """Send to one site once; a second time without Idempotency-Key if the site stores no answers."""
        keyed = request.once is not None and site.url not in self._keyless
        outcome = yield from self._send(request, attempt, site)
        if keyed and isinstance(outcome, ApiFailure) and outcome.code == "invalid_header":
            self._keyless.add(site.url)
            outcome = yield from self._send(request, attempt, site)
        return outcome

    def _send(self, request: Request, attempt: Attempt, site: ServerSite) -> Call[HttpReply | ApiFailure]:
        now = yield from look()
        left_s = attempt.left_s(now)
        if left_s is not None and left_s <= 0:
            raise self._late(None)
        others = len({*attempt.tried_sites, site.url}) < len(self.sites)
        head = yield from send(self._opening(request, site, left_s, others=others))
        if isinstance(head, Broken):
            return self._unreachable(site, head)
        if request.streams and head.status < 400:
            return HttpReply(head, site)
        body = yield from self._body(attempt)
        yield from close()
        if isinstance(body, Broken):
            return self._unreachable(site, body)
        if head.status >= 400:
            return failure_of(head.status, head.headers, body, site.url)
        return HttpReply(head, site, body)

    def _body(self, attempt: Attempt) -> Call[bytes | Broken]:
        parts: list[bytes] = []
        while True:
            now = yield from look()
            left_s = attempt.left_s(now)
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
        """Update the health of a site after a failure: a site that refuses a request works."""
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
        return DeadlinePassed(f"the deadline passed before the answer was complete{said}")
