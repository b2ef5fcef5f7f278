"""A worker of a network: a model to compute gradients with, and no optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from windlass.corpus.corpus_dir import load_corpus
from windlass.parallel.device import place_process
from windlass.parallel.device_mesh import Mesh
from windlass.parallel.param_shard import Slice, whole
from windlass.parallel.partition import cut_model
from windlass.parallel.process_group import SingleProcess
from windlass.parallel.strategy import Batch, Strategy
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.train.compile_model import compiled
from windlass.train.data_loader import DataLoader
from windlass.train.evaluate import evaluate
from windlass.train.event_log import EventLog
from windlass.train.sample import continue_tokens
from windlass.train.server.connections import Facts, ServerConnections
from windlass.train.server.frames import Frame
from windlass.train.server.shard_state import ROWS
from windlass.train.server.sharding import divide_weights
from windlass.train.trainer import SAMPLE_TOKENS


class GradientWorker:
    """The model of a worker: trains and evaluates like a trainer of one process, without an optimizer."""

    def __init__(self, run: Run, record: EventLog, threads: int) -> None:
        self.run = run.model_copy(update={"layout": Layout(recompute=run.layout.recompute)})
        device = place_process(run.job.machine, threads, 0)
        self.corpus = load_corpus(Path(run.corpus))
        self._grid = Mesh(self.run.layout, device, SingleProcess())
        self.strategy = Strategy(
            self.run, self._grid, cut_model(run.network, self.run.layout), init_weights=False
        )
        if run.compile:
            self.strategy.forward = compiled(self.strategy.stages[0].model, record)
        self.feed = DataLoader(self.run, self.corpus, 0)
        self.holdings = {holding.name: holding for holding in self.strategy.params.holdings}
        self.looked_up = looked_up(run)

    def read(self, order: Facts) -> list[Batch]:
        """Read the samples of a task."""
        if order["micro"] != self.run.micro_batch_sequences:
            self.run = self.run.model_copy(update={"micro_batch_sequences": order["micro"]})
            self.feed.follow(self.run)
        self.feed.digest = 0
        return self.feed.read(np.arange(order["first"], order["until"], dtype=np.int64))

    def learn(self, batches: Sequence[Batch], *, sequences: int, clip: bool) -> Facts:
        """Add up the gradients of the mean loss over `sequences` sequences; with `clip`, clip them.

        The gradient of a part of a batch is noisier, so its norm is larger; the limit is scaled accordingly.
        """
        held, size = self.strategy.params, self.run.batch_sequences
        held.clear()
        loss = self.strategy.forward_backward(
            batches, self.feed.num_targets(of_replicas=1) * sequences // size
        )
        held.reduce_grads()
        max_norm = (self.run.job.train.clip or math.inf) * math.sqrt(size / sequences)
        norm = held.clip(max_norm) if clip else 0.0
        return {"loss": float(loss), "norm": norm, "digest": self.feed.digest}

    def evaluate(self, order: Facts) -> Facts:
        """Evaluate a part of the held-out text; the worker with part 0 also generates samples."""
        kept: list[Tensor] = []

        def keep(known: Tensor) -> Tensor:
            kept.append(known)
            return known

        result = evaluate(
            self.strategy.eval_loss,
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
    """Return the weights of which a batch needs only the rows of its tokens: an untied embedding."""
    return () if getattr(run.network, "tied", True) else ("embedding.weight",)


class NetworkTaskRunner:
    """Does the tasks of a network."""

    stage = "network"

    def __init__(self, run: Run, record: EventLog, threads: int) -> None:
        self._learner = GradientWorker(run, record, threads)
        shapes = {name: holding.shape for name, holding in self._learner.holdings.items()}
        self._division = divide_weights(shapes, run.job.sync.servers)

    def do(self, order: Facts, connections: ServerConnections) -> Facts:
        learner = self._learner
        if order["kind"] == "evaluate":
            self._pull(connections, {})
            return learner.evaluate(order)
        batches = learner.read(order)
        rows = _rows(batches, learner.looked_up)
        # Nothing changes between two parts of one batch in synchronous mode.
        fresh = connections.stamp == order["stamp"] and order["ahead"] == 0
        version = order["stamp"][1] if fresh else self._pull(connections, rows, order["ahead"])
        alone = order["mode"] != "synchronous" or order["parts"] == 1
        sequences = order["until"] - order["first"] if alone else learner.run.batch_sequences
        facts = learner.learn(batches, sequences=sequences, clip=alone)
        connections.push(order["id"], [self._share(boxes, rows) for boxes in self._division])
        return {**facts, "version": version}

    @torch.no_grad()
    def _pull(self, connections: ServerConnections, rows: dict[str, Tensor], ahead: int = 0) -> int:
        """Fetch the weights, of those in `rows` only these rows; return the oldest version."""
        version, frames = connections.pull(rows, ahead)
        for frame, boxes in zip(frames, self._division, strict=True):
            self._take(frame, boxes)
        return version

    def _take(self, frame: Frame, boxes: Mapping[str, Slice]) -> None:
        for name, box in boxes.items():
            holding, value = self._learner.holdings[name], frame.arrays[name]
            if name + ROWS in frame.arrays:
                holding.tensor[frame.arrays[name + ROWS]] = value.to(holding.tensor.device)
            else:
                holding.tensor[box.within(whole(holding.shape))].copy_(value)

    def _share(self, boxes: Mapping[str, Slice], rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return one server's part of the gradient."""
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
        return share


def _rows(batches: Sequence[Batch], names: Sequence[str]) -> dict[str, Tensor]:
    if not names:
        return {}
    tokens = torch.unique(torch.cat([inputs_BT.reshape(-1) for inputs_BT, _ in batches]))
    return dict.fromkeys(names, tokens)
