"""One server's rows of the probabilities of a hidden Markov model, and the counts they are computed from.

A server holds some states with their transitions and emissions. Rows are normalised independently, so each
server does the M-step of its own rows without the others.

An update of a whole iteration is one step of Baum-Welch. An update of a part of it is a step of incremental
EM (Neal and Hinton 1998): the server keeps the last counts of every part, replaces those of one part, and
recomputes the probabilities at once. Counts are integers, so subtracting them is exact. Until every part has
been counted once, the probabilities stay as they are.

K states, V tokens, S states of this server, U tokens of a push.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.models.hmm.weights import NAMES, HmmWeights
from windlass.spec.errors import BadInput
from windlass.spec.run import CHECKPOINTS, Run
from windlass.spec.shape import HmmShape
from windlass.train.checkpoint.async_save import State
from windlass.train.collective_errors import raise_on_all_ranks
from windlass.train.event_log import EventLog
from windlass.train.hmm.checkpoints import Progressed, Saves
from windlass.train.hmm.exact_sum import fraction_bits, real
from windlass.train.hmm.maximise import likeliest, log_rows
from windlass.train.hmm.report import HmmReport
from windlass.train.hmm.sweep import blocks_of
from windlass.train.server.shard_state import ROWS, ServerGroup, Share
from windlass.train.server.updates import ServerUpdate

WAIT_S = 0.1

Write = Callable[[State, HmmWeights], Path]


@dataclass(frozen=True)
class PartCounts:
    """The newest counts of one part of the text."""

    share: Share
    likelihood: int
    impossible: int


class HmmShardState:
    """The states of one server."""

    stage = "hidden"
    due = False

    def __init__(self, run: Run, folder: Path, number: int) -> None:
        assert isinstance(run.shape, HmmShape)
        self._shape, self._folder, self._number = run.shape, folder, number
        self._smoothing = run.job.model.hmm.smoothing
        self._record = EventLog(folder, quiet=number > 0, rank=number)
        self.reporter = HmmReport(run, folder, self._record, threads=1)
        self.saves = Saves(folder, run.job, self._record)
        self._bits = fraction_bits(self.reporter.text.tokens)
        self.states = states_of(run.shape.states, run.job.sync.servers)[number]
        if not self.states:
            raise BadInput(f"[sync] servers = {run.job.sync.servers}: not enough states for so many")
        self.blocks = len(blocks_of(run.shape.states, self.reporter.text))
        self.write: Write | None = None
        """Writes a checkpoint of all probabilities; set by the primary's task."""
        self.notes: Mapping[str, Any] = {}
        """The newest notes of the task, from the log."""
        self._forget(parts=0)

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in self._tables.values())

    def load(self) -> tuple[State | None, list[str]]:
        """Load the newest checkpoint. If there is none, the primary writes the initial probabilities;
        others wait."""
        while (found := self.saves.newest()) is None:
            if self._number == 0:
                self.saves.save(self.reporter.first(), Progressed(0))
            time.sleep(WAIT_S)
        weights, state = found
        own = slice(self.states.start, self.states.stop)
        self._tables = {
            "transition": torch.from_numpy(weights.transition_KK[own].copy()),
            "emission": torch.from_numpy(weights.emission_KV[own].copy()),
        }
        if self._number == 0:
            self._tables["start"] = torch.from_numpy(weights.start_K.copy())
        self.loaded = state
        return State(state.step, state.step * self.blocks, state.train_s), []

    def values(self, _rows: Share, _ahead: int) -> dict[str, Tensor]:
        return {name: table.clone() for name, table in self._tables.items()}

    def check(self, share: Share) -> None:
        tokens_U = share.get("emission" + ROWS)
        rows = 0 if tokens_U is None else len(tokens_U)
        for name, size in self._sizes.items():
            wanted = (rows, size[1]) if name == "emission" else size
            given = share.get(name)
            if given is None or given.dtype != torch.int64 or tuple(given.shape) != wanted:
                raise BadInput(f"a push must have counts of '{name}', {list(wanted)} whole numbers")

    def square(self, _shares: Sequence[Share]) -> float:
        raise AssertionError("counts are not clipped")

    def apply(self, shares: Sequence[Share], update: ServerUpdate) -> dict[str, Any]:
        likelihood, impossible = update.more["likelihood"], update.more["impossible"]
        if update.parts == 1:  # a whole iteration replaces all earlier counts
            self._forget(parts=1)
            for share in shares:
                self._add(share, 1)
            return self._maximised({"likelihood": likelihood, "impossible": impossible}, update)
        if update.parts != self._parts:
            self._forget(update.parts)
        before = self._kept.get(update.part)
        if before is not None:
            self._add(before.share, -1)
        self._add(shares[0], 1)
        self._kept[update.part] = PartCounts(shares[0], likelihood, impossible)
        kept = self._kept.values()
        facts = {"likelihood": sum(k.likelihood for k in kept), "impossible": sum(k.impossible for k in kept)}
        return self._maximised(facts, update) if len(kept) == update.parts else facts

    def unsaved(self) -> Iterator[tuple[dict[str, Any], Share]]:
        for part, kept in self._kept.items():
            facts = {"likelihood": kept.likelihood, "impossible": kept.impossible}
            yield {"part": part, "parts": self._parts, **facts}, kept.share

    def restore_unsaved(self, head: Mapping[str, Any], share: Share) -> None:
        if "notes" in head:
            self.notes = head["notes"]
            return
        if head["parts"] != self._parts:
            self._forget(head["parts"])
        self._add(share, 1)
        self._kept[head["part"]] = PartCounts(share, head["likelihood"], head["impossible"])

    def missing_for(self, update: ServerUpdate) -> list[str]:
        """The update has the primary's number of counted parts; a server with another number has lost
        some."""
        if update.parts == 1 or update.more["kept"] == self.kept(update.parts):
            return []
        return [f"counts of {update.parts} parts"]

    def kept(self, parts: int) -> int:
        """Return how many of `parts` parts were counted."""
        return len(self._kept) if parts == self._parts else 0

    def save(self, state: State, group: ServerGroup) -> Path:
        path = self._folder / CHECKPOINTS
        with raise_on_all_ranks(group, f"{path}: the checkpoint could not be written"):
            shares = group.gather(self._tables)
            if shares is not None:
                assert self.write is not None
                path = self.write(state, assembled(shares))
        return path

    def close(self, _within_s: float) -> None:
        self.saves.close()
        self._record.close()

    @property
    def _sizes(self) -> dict[str, tuple[int, ...]]:
        own, states, vocabulary = len(self.states), self._shape.states, self._shape.vocabulary
        sizes: dict[str, tuple[int, ...]] = {"transition": (own, states), "emission": (vocabulary, own)}
        return {**sizes, "start": (states,)} if self._number == 0 else sizes

    def _forget(self, parts: int) -> None:
        self._parts, self._kept = parts, dict[int, PartCounts]()
        self._sums = {name: torch.zeros(size, dtype=torch.int64) for name, size in self._sizes.items()}

    def _add(self, share: Share, sign: int) -> None:
        for name, sums in self._sums.items():
            if name == "emission":
                sums.index_add_(0, share[name + ROWS], share[name], alpha=sign)
            else:
                sums.add_(share[name], alpha=sign)

    def _maximised(self, facts: dict[str, Any], update: ServerUpdate) -> dict[str, Any]:
        """Compute the next probabilities; at the end of an iteration, add the log prior of the previous
        ones."""
        if update.more["ends"] and self._smoothing:
            facts["prior"] = [row for table in self._tables.values() for row in log_rows(table.numpy())]
        for name, table in self._tables.items():
            counts = real(self._sums[name], self._bits)
            counts = counts.T.contiguous() if name == "emission" else counts
            self._tables[name] = torch.from_numpy(likeliest(counts.numpy(), table.numpy(), self._smoothing))
        return facts


def states_of(states: int, servers: int) -> list[range]:
    """Divide the states evenly among the servers."""
    boundaries = [states * n // servers for n in range(servers + 1)]
    return [range(boundaries[n], boundaries[n + 1]) for n in range(servers)]


def assembled(shares: Sequence[Share]) -> HmmWeights:
    """Concatenate the values of all servers, in their order."""
    joined = {name: torch.cat([share[name] for share in shares if name in share]) for name in NAMES}
    return HmmWeights(*(joined[name].numpy() for name in NAMES))
