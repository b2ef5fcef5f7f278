"""One gateway's lease of one budget: spent without I/O until it expires.

The database leases for a term by its own clock. The holder counts the term by its monotonic clock from before
it sent the request, less the possible drift of two clocks, so the lease has always expired here before the
database leases it to others. Time is an argument, in seconds of the monotonic clock.
"""

from __future__ import annotations

import math

from windlass.serve.records.bucket import LeaseRequest, Rule, free_after_s
from windlass.serve.records.quotas import Received

TERM_S = 3.0
"""The term of a lease. The lease of a gateway that dies is lost for this long."""
CLOCKS_DIFFER = 0.02
"""Assumed maximum drift of two clocks; real clocks drift by less than 0.001."""
MEMORY_S = 1.0
"""Time constant of the demand estimate."""
STALE_S = 0.1
AHEAD_S = 0.25
"""The lease holds the demand of this time in advance."""


class QuotaLease:
    """The lease of one budget: `free` can be taken, `used` is held by requests that are not settled."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.free = 0.0
        self.used = 0.0
        self.waiting = 0.0
        """The sum of what requests need that wait for the next exchange."""
        self.need = 0.0
        """What the largest of them needs."""
        self.epoch = 0
        self.renew_at = -math.inf
        self._until = -math.inf
        self._left, self._left_at, self._clock = 0.0, -math.inf, 0.0
        self._holders = 1
        self._demand, self._demand_at = 0.0, 0.0

    def has(self, amount: float, now: float) -> bool:
        """Return whether the amount can be taken at once."""
        if now >= self._until:
            self._lapse(now)
        return self.free >= amount

    def may_get(self, amount: float, now: float) -> bool:
        """Return whether an exchange may bring what is missing, as far as is known."""
        if amount > self.rule.capacity:
            return False
        known_for_s = now - self._left_at
        mine = max(0.0, self._left) + self.rule.per_s * known_for_s / self._holders
        return self.is_disconnected(now) or mine - self.waiting >= amount - self.free

    def take(self, amount: float, now: float) -> None:
        self.free -= amount
        self.used += amount
        self._demand = self._demand * math.exp((self._demand_at - now) / MEMORY_S) + amount
        self._demand_at = now

    def note_demand(self, amount: float, now: float) -> None:
        """Add an amount to the demand estimate."""
        self._demand = self._demand * math.exp((self._demand_at - now) / MEMORY_S) + amount
        self._demand_at = now

    def expect(self, amount: float) -> None:
        """Add an amount that a request waits for to the next exchange."""
        self.waiting += amount
        self.need = max(self.need, amount)

    def settle(self, taken: float, spent: float, epoch: int, now: float) -> None:
        """End a use and return the rest; the rest of an expired lease already counts as spent."""
        self._lapse(now)
        if self.rule.fills == "permits":
            self.used -= taken
            self.free += taken if now < self._until else 0.0
        elif epoch == self.epoch:
            self.used -= taken
            self.free += taken - spent

    def order(self, now: float) -> LeaseRequest:
        """Return the request for the next exchange; what it returns can no longer be taken here."""
        self._lapse(now)
        target = self._target(now)
        back = math.floor(max(0.0, self.free - 2 * target - self.waiting))
        self.free -= back
        want = max(0.0, target + self.waiting - self.free)
        need = max(0.0, self.need - self.free)
        self.waiting = self.need = 0.0
        return LeaseRequest(keep=max(0.0, self.free + self.used), back=back, want=max(want, need), need=need)

    def receive(self, received: Received, sent_at: float, now: float) -> None:
        """Apply the result of an exchange, whose request was made at `sent_at`."""
        self._lapse(now)
        self._until = sent_at + TERM_S * (1 - CLOCKS_DIFFER)
        self.renew_at = sent_at + TERM_S / 3
        self._left, self._left_at, self._clock = received.left, sent_at, received.now
        self._holders = max(1, received.holders)
        self.free += received.granted
        self._lapse(now)

    def is_disconnected(self, now: float) -> bool:
        """Return whether the last exchange is so long ago that the lease has expired."""
        return now - self._left_at > TERM_S

    def is_low(self, now: float) -> bool:
        """Return whether it is time to extend the lease, ahead of need."""
        return 2 * self.free < self._target(now) and self.left(now) >= 1

    def is_stale(self, now: float) -> bool:
        """Return whether other gateways may have returned something since the last exchange."""
        return now - self._left_at > STALE_S

    def is_idle(self, now: float) -> bool:
        return not (self.used or self.waiting or self.free) and self._target(now) < 1

    def left(self, now: float) -> float:
        """Return what is left in the database, as far as known; before the first exchange, all of it."""
        rest = self.rule.capacity - self.free - self.used
        if self._left_at == -math.inf:
            return rest
        return min(rest, self._left + self.rule.per_s * (now - self._left_at))

    def free_in_s(self, amount: float, now: float) -> float | None:
        """Return when the amount will be available if no other request takes it; None if unknown."""
        wall = self._clock + (now - self._left_at if self._clock else 0.0)
        return free_after_s(self.rule, max(0.0, self.left(now)) + self.free, amount, wall)

    def lacks_for_s(self, amount: float, now: float) -> float:
        """Return the same as a number: infinite if never, 0 for permits, whose return time is unknown."""
        if amount > self.rule.capacity:
            return math.inf
        return self.free_in_s(amount, now) or 0.0

    def change(self, rule: Rule) -> None:
        """Change the rule; what is left is unknown until the next exchange."""
        if rule != self.rule:
            self.renew_at = self._left_at = -math.inf
        self.rule = rule

    def _target(self, now: float) -> float:
        """Return how much to hold ahead: the demand of AHEAD_S, at most half of this gateway's share."""
        rate = self._demand * math.exp((self._demand_at - now) / MEMORY_S) / MEMORY_S
        if rate * MEMORY_S < 0.05:
            return 0.0
        return min(math.ceil(rate * AHEAD_S), self.rule.capacity / (2 * self._holders))

    def _lapse(self, now: float) -> None:
        """Drop an expired lease; permits stay in use, and the next exchange reports them."""
        if now < self._until or self._until == -math.inf:
            return
        self._until = -math.inf
        self.epoch += 1
        self.free = 0.0
        if self.rule.fills != "permits":
            self.used = 0.0
