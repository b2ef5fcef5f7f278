"""Whoever computes gradients: asks for a batch, pulls weights, learns, pushes, and asks again.

It keeps nothing that would be missed. A line that breaks, for whatever reason, ends what it was doing; it
goes to meet the servers again, and what it had not finished is handed out anew.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windlass.corpus.built import load_corpus
from windlass.parallel.crew import Alone
from windlass.parallel.cut import cut_model
from windlass.parallel.device import place_process
from windlass.parallel.grid import Grid
from windlass.parallel.holding import whole
from windlass.parallel.strategy import Batch, Strategy
from windlass.spec.errors import ProcessFailed
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.train.compiled import compiled
from windlass.train.evaluate import evaluate
from windlass.train.feed import Feed
from windlass.train.record import Record
from windlass.train.sample import continue_tokens
from windlass.train.server.division import divide_weights
from windlass.train.server.frames import Line
from windlass.train.server.peers import LOOK_AGAIN_S, PATIENCE_S, connect
from windlass.train.server.shard import ROWS
from windlass.train.trainer import SAMPLE_TOKENS

Facts = dict[str, Any]


class Learner:
    """The model of a worker: learns and looks as a trainer of one process does, without an optimizer."""

    def __init__(self, run: Run, record: Record, threads: int) -> None:
        self.run = run.model_copy(update={"layout": Layout(recompute=run.layout.recompute)})
        device = place_process(run.job.machine, threads, 0)
        self.corpus = load_corpus(Path(run.corpus))
        self._grid = Grid(self.run.layout, device, Alone())
        self.strategy = Strategy(self.run, self._grid, cut_model(run.network, self.run.layout), fill=False)
        if run.compile:
            self.strategy.forward = compiled(self.strategy.stages[0].model, record)
        self.feed = Feed(self.run, self.corpus, 0)
        self.holdings = {holding.name: holding for holding in self.strategy.held.holdings}
        self.looked_up = looked_up(run)

    def read(self, order: Facts) -> list[Batch]:
        """Read the samples of a task."""
        if order["micro"] != self.run.micro_batch_sequences:
            self.run = self.run.model_copy(update={"micro_batch_sequences": order["micro"]})
            self.feed.follow(self.run)
        self.feed.digest = 0
        return self.feed.read(np.arange(order["first"], order["until"], dtype=np.int64))

    def learn(self, batches: Sequence[Batch], *, clip: bool) -> Facts:
        """Add up gradients; those of a whole batch are clipped here, as a trainer does."""
        held = self.strategy.held
        held.clear()
        loss = self.strategy.learn(batches, self.feed.asked(of_replicas=1))
        held.collect()
        most = self.run.job.train.clip or float("inf")
        norm = held.clip(most) if clip else 0.0
        return {"loss": float(loss), "norm": norm, "digest": self.feed.digest}

    def look(self, order: Facts) -> Facts:
        """Measure a part of the held-out text; whoever has the first also shows what the model writes."""
        kept: list[Tensor] = []

        def keep(known: Tensor) -> Tensor:
            kept.append(known)
            return known

        result = evaluate(
            self.strategy.look,
            self.corpus.validation,
            self.feed.objective,
            context=self.run.network.context,
            sequences=order["sequences"],
            share=(order["part"], order["parts"]),
            add_up=keep,
        )
        texts = list(self._texts()) if order["part"] == 0 else []
        return {"summed": float(kept[0]).hex(), "sequences": result.sequences, "texts": texts}

    def _texts(self) -> Iterator[str]:
        run, tokenizer = self.run, self.corpus.tokenizer
        if run.objective != "causal":
            return
        for prompt in run.job.train.sample_prompts or ("",):
            ids = continue_tokens(
                self.strategy.last_scores,
                tokenizer.encode(prompt),
                SAMPLE_TOKENS,
                context=run.network.context,
                seed=run.job.seed,
                end=tokenizer.end_id,
            )
            yield prompt + tokenizer.decode(ids)


def looked_up(run: Run) -> tuple[str, ...]:
    """Name the weights of which a batch needs the rows of its tokens only: an embedding that is no output."""
    return () if getattr(run.network, "tied", True) else ("embedding.weight",)


class Lines:
    """A worker's lines: one to each server for weights and gradients, one to the first for work."""

    def __init__(self, folder: Path, run: Run, learner: Learner, name: str) -> None:
        servers = run.job.sync.servers
        shapes = {name: holding.shape for name, holding in learner.holdings.items()}
        self._division = divide_weights(shapes, servers)
        self._learner, self._lines = learner, list[Line]()
        self.version = -1
        """Of the weights here; -1 where they are none that ever stood."""
        try:
            self._lines = [connect(folder, number, role="learns")[0] for number in range(servers)]
            self.chief = connect(folder, 0, role="asks", name=name)[0]
        except ConnectionError:
            self.close()
            raise

    def close(self) -> None:
        for line in self._lines:
            line.close()
        if hasattr(self, "chief"):
            self.chief.close()

    def traffic(self) -> Facts:
        """Return the bytes that went since the last call."""
        told = {"sent": sum(line.bytes_sent for line in self._lines)}
        told["received"] = sum(line.bytes_received for line in self._lines)
        for line in self._lines:
            line.bytes_sent = line.bytes_received = 0
        return told

    @torch.no_grad()
    def pull(self, rows: dict[str, Tensor], ahead: int = 0) -> int:
        """Fetch the weights, of some only rows; return the oldest version among them."""
        asked = {name + ROWS: ids for name, ids in rows.items()}
        for line in self._lines:
            line.send(asked, do="pull", ahead=ahead)
        versions = []
        for line, boxes in zip(self._lines, self._division, strict=True):
            frame = line.receive()
            versions.append(int(frame.head["version"]))
            for name, box in boxes.items():
                holding, value = self._learner.holdings[name], frame.arrays[name]
                if name + ROWS in frame.arrays:
                    holding.tensor[frame.arrays[name + ROWS]] = value.to(holding.tensor.device)
                else:
                    holding.tensor[box.within(whole(holding.shape))].copy_(value)
        self.version = -1 if rows or ahead else min(versions)
        return min(versions)

    def push(self, task: str, rows: dict[str, Tensor]) -> None:
        """Send a gradient to all servers; when this returns, all of them have it in their logs."""
        for line, boxes in zip(self._lines, self._division, strict=True):
            share: dict[str, Tensor] = {}
            for name, box in boxes.items():
                holding = self._learner.holdings[name]
                gradient = holding.tensor.grad
                assert gradient is not None
                if name in rows:
                    first, until = box.spans[0]
                    ids = rows[name][(rows[name] >= first) & (rows[name] < until)]
                    share[name + ROWS], share[name] = ids, gradient[ids].cpu()
                else:
                    share[name] = gradient[box.within(whole(holding.shape))].cpu()
            line.send(share, do="push", task=task)
        for line in self._lines:
            line.receive()


def work(folder: Path, run: Run, name: str, threads: int, stopped: Callable[[], bool]) -> None:
    """Work for a run until it is over, or until this worker shall leave."""
    record = Record(folder, rank=1)
    learner = Learner(run, record, threads)
    until = math.inf  # the first server may have much to do before it lets anybody in
    while not stopped():
        try:
            with contextlib.closing(Lines(folder, run, learner, name)) as lines:
                until = time.monotonic() + PATIENCE_S
                if _serve(lines, learner, stopped):
                    return
        except (ConnectionError, OSError) as error:
            if time.monotonic() > until:
                raise ProcessFailed(
                    f"{name}: no server came back within {PATIENCE_S:.0f} s: {error}"
                ) from None
            time.sleep(LOOK_AGAIN_S)


def _serve(lines: Lines, learner: Learner, stopped: Callable[[], bool]) -> bool:
    """Do one task after the other. Return True when the run is over."""
    told: Facts | None = None
    while not stopped() or told is not None:
        order = lines.chief.ask(told=told).head
        if order["kind"] == "end":
            return True
        begin = time.perf_counter()
        told = {"task": order["id"], **_done(order, lines, learner), **lines.traffic()}
        told["took_s"] = time.perf_counter() - begin
    return False


def _done(order: Facts, lines: Lines, learner: Learner) -> Facts:
    if order["kind"] == "look":
        lines.pull({})
        return learner.look(order)
    batches = learner.read(order)
    rows = _rows(batches, learner.looked_up)
    # Nothing changes between two parts of one batch in synchronous mode.
    fresh = lines.version == order["step"] and order["ahead"] == 0
    version = lines.version if fresh else lines.pull(rows, order["ahead"])
    told = learner.learn(batches, clip=order["parts"] == 1)
    lines.push(order["id"], rows)
    return {**told, "version": version}


def _rows(batches: Sequence[Batch], names: Sequence[str]) -> dict[str, Tensor]:
    if not names:
        return {}
    tokens = torch.unique(torch.cat([inputs_BT.reshape(-1) for inputs_BT, _ in batches]))
    return dict.fromkeys(names, tokens)
