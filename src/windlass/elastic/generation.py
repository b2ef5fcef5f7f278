"""Lays a run out on the waiting workers, as the next generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windlass.elastic.membership import shares_for
from windlass.elastic.membership_state import MembershipState, WorkerState
from windlass.plan.relayout import Waits, relayout
from windlass.spec.layout import Layout
from windlass.spec.protocol.elastic import Assign
from windlass.spec.run import Run


@dataclass(frozen=True)
class Generation:
    """A period with fixed members and layout."""

    number: int
    members: tuple[WorkerState, ...]
    """By rank."""
    spares: tuple[str, ...]
    layout: Layout
    micro_batch_sequences: int
    reason: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(worker.worker for worker in self.members)

    @property
    def shares(self) -> dict[str, int] | None:
        """Sequences of each member, where every member is a replica of its own."""
        shares = self.layout.shares
        if shares is None or len(shares) != len(self.members):
            return None
        return dict(zip(self.names, shares, strict=True))

    def record(self, epoch: int) -> dict[str, Any]:
        """Return the fields of its journal record."""
        members = [{"worker": w.worker, "node": w.node, "rank": rank} for rank, w in enumerate(self.members)]
        return {
            "generation": self.number,
            "epoch": epoch,
            "members": members,
            "spares": list(self.spares),
            "layout": self.layout.model_dump(mode="json"),
            "reason": self.reason,
        }

    def assignment(self, rank: int, epoch: int) -> Assign:
        """Return the assignment of a rank; all ranks meet at the store of rank 0."""
        return Assign(
            epoch=epoch,
            generation=self.number,
            rank=rank,
            world=len(self.members),
            layout=self.layout.model_dump(mode="json"),
            rendezvous=self.members[0].store,
            members=list(self.names),
            reason=self.reason,
            micro_batch_sequences=self.micro_batch_sequences,
        )


def lay_out(run: Run, state: MembershipState, reason: str) -> Generation | Waits:
    """Return the next generation, of the waiting workers, or the reason why there can be none."""
    ready = state.ready
    relaid = relayout(run, len(ready[: state.wanted]))
    if isinstance(relaid, Waits):
        return relaid
    members = ready[: relaid.used]
    shares = shares_for(state, relaid.layout, [w.worker for w in members])
    return Generation(
        number=state.generation + 1,
        members=tuple(members),
        spares=tuple(w.worker for w in ready[relaid.used :]),
        layout=relaid.layout.model_copy(update={"shares": shares}),
        micro_batch_sequences=relaid.micro_batch_sequences,
        reason=f"{reason}; {relaid.reason}",
    )
