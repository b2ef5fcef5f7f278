"""One gateway's part of one budget: spent here without asking anybody, until its time is over.

The database lends for a term by its own clock. The holder counts the term by its monotonic clock from before
it asked, less what two clocks may differ by, so it has always stopped when the database lends to others. Time
is an argument, in seconds of the monotonic clock.
"""

from __future__ import annotations

import math

from windlass.serve.records.bucket import LeaseRequest, Rule, free_after_s
from windlass.serve.records.quotas import Received

TERM_S = 3.0
"""For how long a part is lent. A gateway that dies takes its part along for so long."""
CLOCKS_DIFFER = 0.02
"""Two clocks may differ in speed by this share; real ones do by less than 0.001."""
MEMORY_S = 1.0
"""Over which demand is remembered."""
STALE_S = 0.1
AHEAD_S = 0.25
"""Demand of so long is held in advance."""


class QuotaLease:
    """What is held of one budget: `free` to be taken, and `used` by requests that are not settled."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.free = 0.0
        self.used = 0.0
        self.waiting = 0.0
        """What all requests that wait for the next exchange ask for."""
        self.need = 0.0
        """What the largest of them asks for."""
        self.epoch = 0
        self.renew_at = -math.inf
        self._until = -math.inf
        self._left, self._left_at, self._clock = 0.0, -math.inf, 0.0
        self._holders = 1
        self._demand, self._demand_at = 0.0, 0.0

    def has(self, amount: float, now: float) -> bool:
        """Tell whether the amount can be taken at once."""
        if now >= self._until:
            self._lapse(now)
        return self.free >= amount

    def hopes(self, amount: float, now: float) -> bool:
        """Tell whether an exchange may bring what lacks, as far as is known; at first nothing is."""
        if amount > self.rule.most:
            return False
        known_for_s = now - self._left_at
        mine = max(0.0, self._left) + self.rule.per_s * known_for_s / self._holders
        return self.is_away(now) or mine - self.waiting >= amount - self.free

    def take(self, amount: float, now: float) -> None:
        self.free -= amount
        self.used += amount
        self._demand = self._demand * math.exp((self._demand_at - now) / MEMORY_S) + amount
        self._demand_at = now

    def miss(self, amount: float, now: float) -> None:
        """Remember that an amount was asked for."""
        self._demand = self._demand * math.exp((self._demand_at - now) / MEMORY_S) + amount
        self._demand_at = now

    def expect(self, amount: float) -> None:
        """Have the next exchange bring an amount that somebody waits for."""
        self.waiting += amount
        self.need = max(self.need, amount)

    def settle(self, taken: float, spent: float, epoch: int, now: float) -> None:
        """End a use; what a lost part was used for is told to nobody, because it counts as spent already."""
        self._lapse(now)
        if self.rule.fills == "permits":
            self.used -= taken
            self.free += taken if now < self._until else 0.0
        elif epoch == self.epoch:
            self.used -= taken
            self.free += taken - spent

    def order(self, now: float) -> LeaseRequest:
        """Say what to exchange; what is given back cannot be taken any more from here on."""
        self._lapse(now)
        target = self._target(now)
        back = math.floor(max(0.0, self.free - 2 * target - self.waiting))
        self.free -= back
        want = max(0.0, target + self.waiting - self.free)
        need = max(0.0, self.need - self.free)
        self.waiting = self.need = 0.0
        return LeaseRequest(keep=max(0.0, self.free + self.used), back=back, want=max(want, need), need=need)

    def receive(self, received: Received, sent_at: float, now: float) -> None:
        """Take in what an order brought; `sent_at` is when it was made, before the database saw it."""
        self._lapse(now)
        self._until = sent_at + TERM_S * (1 - CLOCKS_DIFFER)
        self.renew_at = sent_at + TERM_S / 3
        self._left, self._left_at, self._clock = received.left, sent_at, received.now
        self._holders = max(1, received.holders)
        self.free += received.granted
        self._lapse(now)

    def is_away(self, now: float) -> bool:
        """Tell whether the database was not heard of for so long that nothing is held any more."""
        return now - self._left_at > TERM_S

    def is_low(self, now: float) -> bool:
        """Tell whether it is time to ask for more, ahead of need."""
        return 2 * self.free < self._target(now) and self.left(now) >= 1

    def is_stale(self, now: float) -> bool:
        """Tell whether others may have given something back since the last exchange."""
        return now - self._left_at > STALE_S

    def is_idle(self, now: float) -> bool:
        return not (self.used or self.waiting or self.free) and self._target(now) < 1

    def left(self, now: float) -> float:
        """Return what anybody may still borrow, as far as is known; of a budget not asked yet, all."""
        room = self.rule.most - self.free - self.used
        if self._left_at == -math.inf:
            return room
        return min(room, self._left + self.rule.per_s * (now - self._left_at))

    def free_in_s(self, amount: float, now: float) -> float | None:
        """Return after how long the amount is there if nobody else asks; None if that cannot be told."""
        wall = self._clock + (now - self._left_at if self._clock else 0.0)
        return free_after_s(self.rule, max(0.0, self.left(now)) + self.free, amount, wall)

    def lacks_for_s(self, amount: float, now: float) -> float:
        """Return the same as a number: never is infinite, and permits come back one does not know when."""
        if amount > self.rule.most:
            return math.inf
        return self.free_in_s(amount, now) or 0.0

    def change(self, rule: Rule) -> None:
        """Go on by another rule, by which nothing is known of what is left until the next exchange."""
        if rule != self.rule:
            self.renew_at = self._left_at = -math.inf
        self.rule = rule

    def _target(self, now: float) -> float:
        """Return how much to hold ahead: the demand of a moment, and never the others' part of the whole."""
        rate = self._demand * math.exp((self._demand_at - now) / MEMORY_S) / MEMORY_S
        if rate * MEMORY_S < 0.05:
            return 0.0
        return min(math.ceil(rate * AHEAD_S), self.rule.most / (2 * self._holders))

    def _lapse(self, now: float) -> None:
        """Lose what is held once its time is over; permits stay in use, and the next order tells of them."""
        if now < self._until or self._until == -math.inf:
            return
        self._until = -math.inf
        self.epoch += 1
        self.free = 0.0
        if self.rule.fills != "permits":
            self.used = 0.0
