"""Runs one model on the processes of a layout: partitioned, divided, sharded.

Input: a run, this process's place on the mesh, and a partition. Output: an object that computes gradients of
a batch (`forward_backward`), evaluates (`eval_loss`), and holds this process's weights as plain tensors.
Model code knows nothing of it; everything is applied here, from outside, in this order: keep the slice,
divide features, recompute, shard, then allocate memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from windlass.models.build import first_value, outline
from windlass.models.feed_forward import scale_router_losses
from windlass.models.huggingface import load_model
from windlass.models.language import LanguageModel
from windlass.models.loss import summed_loss
from windlass.models.word2vec_files import VECTORS, first_embedding, load_vectors
from windlass.parallel.activation_checkpoint import recompute_blocks
from windlass.parallel.async_pipeline import AsyncPipeline, Between, Source
from windlass.parallel.context_parallel import DividedSequence
from windlass.parallel.device_mesh import Mesh
from windlass.parallel.local_params import TIED, LocalParams, reshard
from windlass.parallel.pipeline import SPLIT, Pipeline
from windlass.parallel.stage import Loss, ModelStage
from windlass.parallel.tensor_parallel import divide_features
from windlass.parallel.vocab_loss import VocabularyLoss, repeatable_loss
from windlass.spec.layout import Layout, Partition, StageSlice
from windlass.spec.run import Run

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, both (B, T)."""


class Strategy:
    """This process's part of the model and how it is computed."""

    def __init__(
        self, run: Run, grid: Mesh, cut: Partition, *, init_weights: bool = True, folder: Path | None = None
    ) -> None:
        """Build this process's slice; without `init_weights`, the caller sets the weights.

        Word vectors that the run learnt before its first step are in its `folder`.
        """
        self.run, self.grid, self.cut = run, grid, cut
        self._folder = folder
        self._narrow = run.job.machine.precision == "bfloat16"
        self.divided = _divided_sequence(run, grid)
        self._loss: Loss = _loss(run, grid)
        pieces = [piece for piece in cut.pieces if piece.position == grid.at["pp"]]
        self.stages = [self._build(piece) for piece in pieces]
        self.params = LocalParams(self.stages, grid, cut)
        if init_weights:
            self.init_weights()
        self.forward: Callable[[Tensor], Tensor] = self.stages[0]
        self.pipeline = self._pipeline() if run.layout.pp > 1 else None

    def init_weights(self) -> None:
        """Set the weights to their initial values."""
        self.params.init_weights(first_values(self.run, self.stages[0].model, self._folder))

    def move(self, run: Run, grid: Mesh) -> None:
        """Continue in another process group; only where each process computes the whole model."""
        assert undivided(self.run.layout), "a divided model is bound to its processes"
        assert undivided(run.layout), "a divided model is built anew"
        self.run, self.grid = run, grid

    def forward_backward(self, batches: Sequence[Batch], num_targets: int) -> Tensor:
        """Forward and backward over the micro-batches; the loss is divided by `num_targets` (global).

        Returns this rank's partial loss: sum it over pp and cp; tp ranks agree.
        """
        for stage in self.stages:
            scale_router_losses(stage, 1.0 / num_targets)
        with self._arithmetic():
            if self.pipeline is not None:
                inputs_BT, targets_BT = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
                return self.pipeline.step(*self._own(inputs_BT, targets_BT), num_targets).detach()
            total = torch.zeros((), device=self.grid.device)
            for batch in batches:
                loss = self._summed(*self._own(*batch)) / num_targets
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total

    def async_step(
        self, step: int, boundary: int, source: Source, num_targets: int, between: Between
    ) -> Tensor:
        """Add up the gradients of batch `step`; later steps below `boundary` may be in flight."""
        assert isinstance(self.pipeline, AsyncPipeline)
        with self._arithmetic():
            return self.pipeline.advance(step, boundary, source, num_targets, between).detach()

    @torch.no_grad()
    def eval_loss(self, batch: Batch) -> Tensor:
        """Return this rank's part of the summed loss of a batch, without gradients."""
        with self._arithmetic():
            inputs_BT, targets_BT = self._own(*batch)
            if self.pipeline is not None:
                return self.pipeline.eval_loss(inputs_BT, targets_BT, self.run.network.width)
            return self._summed(inputs_BT, targets_BT)

    def reshard(self) -> None:
        """Free the gathered weights after evaluation; each process keeps its shard."""
        reshard(self.stages)

    @property
    def whole(self) -> bool:
        """Whether each process can compute logits alone: no pp, tp or cp (weights may be sharded)."""
        layout = self.run.layout
        return layout.pp == layout.tp == layout.cp == 1

    @torch.no_grad()
    def last_scores(self, tokens_1T: Tensor) -> Tensor:
        """Return the logits after `tokens_1T`; only where `whole`. All processes call it together."""
        stage = self.stages[0]
        with self._arithmetic():
            return stage.model.logits(stage(tokens_1T.to(self.grid.device))[:, -1:])[0, 0].float().cpu()

    def _summed(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return self._loss(self.stages[0].model, self.forward(inputs_BT), targets_BT)

    def _own(self, inputs_BT: Tensor, targets_BT: Tensor) -> Batch:
        """Move the tokens that this process computes to its device."""
        if self.divided is not None:
            inputs_BT, targets_BT = self.divided.taken(inputs_BT), self.divided.taken(targets_BT)
        return inputs_BT.to(self.grid.device), targets_BT.to(self.grid.device)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.grid.device.type, torch.bfloat16, enabled=self._narrow)

    def _build(self, piece: StageSlice) -> ModelStage:
        layout, device = self.run.layout, self.grid.device
        model = outline(self.run.network)
        stage = ModelStage(model, piece, self.divided)
        if layout.tp > 1:
            divide_features(model, self.grid.mesh["tp"], sequence=layout.sequence)
        recompute_blocks(model, layout.recompute)
        if layout.sharded > 1:
            _shard(stage, self.grid)
        stage.to_empty(device=device)
        model.place_tables(device)
        return stage

    def _pipeline(self) -> Pipeline | AsyncPipeline:
        run, sequences = self.run, self.run.micro_batch_sequences
        count = run.batch_sequences // run.layout.replicas // sequences
        if run.layout.asynchronous:
            return AsyncPipeline(
                self.stages[0], self.grid, self._loss, micro_batches=count, sequences=sequences
            )
        return Pipeline(self.stages, self.grid, self.cut, self._loss, count)


def undivided(layout: Layout) -> bool:
    """Whether every process of a layout holds and computes the whole model."""
    return layout.pp == layout.sharded == layout.cp == layout.tp == 1


def _divided_sequence(run: Run, grid: Mesh) -> DividedSequence | None:
    group = grid.group("cp")
    if group is None:
        return None
    return DividedSequence(group, run.network.context, grid.device, causal=run.objective == "causal")


def _loss(run: Run, grid: Mesh) -> Loss:
    if run.layout.tp == 1:
        return repeatable_loss if run.layout.pp > 1 and run.layout.schedule in SPLIT else summed_loss
    return VocabularyLoss(grid.mesh["tp"], run.network.vocabulary, sequence=run.layout.sequence)


def _shard(stage: ModelStage, grid: Mesh) -> None:
    """Shard every weight (FSDP): a process keeps its shard and gathers the others while it computes.

    Gradients are added up, not averaged: the loss is already divided by the global number of targets.
    """
    # torch warns of in-place changes of a returned view; nothing here makes any.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    mesh = grid.mesh["sharded"]
    modules: list[nn.Module] = [*stage.model.layers.values(), stage]
    for module in modules:
        fully_shard(module, mesh=mesh)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds


def first_values(
    run: Run, model: LanguageModel, folder: Path | None
) -> Callable[[str, tuple[int, ...]], Tensor]:
    """Return the source of the initial weights: the seed and vectors of the run, or a registered model."""
    if run.start_from is None:
        embedding = _learnt_embedding(run, folder)

        def value(name: str, size: tuple[int, ...]) -> Tensor:
            if embedding is not None and name == TIED:
                return embedding
            return first_value(model, name, size, run.job.seed)

        return value
    start = load_model(Path(run.start_from), dtype=torch.float32)
    return lambda name, _size: start.get_parameter(name).detach()


def _learnt_embedding(run: Run, folder: Path | None) -> Tensor | None:
    """Return the word vectors that the run learnt (train/word2vec), if any; a checkpoint replaces them."""
    if folder is None or run.shape.family != "mlp" or run.job.model.mlp.start != "word2vec":
        return None
    vectors = load_vectors(folder / VECTORS)
    return None if vectors is None else torch.from_numpy(first_embedding(vectors))
