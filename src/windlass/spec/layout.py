"""How one model is divided among many processes, and which layouts are impossible.

The processes form a mesh. Each axis divides something else:

    pp       layers: a row of stages, through which micro-batches flow
    dp       the batch: replicas that hold everything and add up their gradients
    sharded  the batch too, but weights, gradients and optimizer are each held by one process only
    cp       the sequence: every process has a part of its tokens
    tp       features: heads and inner widths

A Partition says which layers each stage has and which features each `tp` process has. It is plain data:
printed, saved with every checkpoint, and drawn by `windlass plan show-cut`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from windlass.spec.config_model import ConfigModel
from windlass.spec.errors import AskedWrongly, BadInput, did_you_mean
from windlass.spec.shape import DecoderShape, HmmShape, MlpShape, Network, NgramShape, Shape

Degree = Annotated[int, Field(ge=1, le=65536)]
Schedule = Literal[
    "gpipe", "1f1b", "interleaved", "looped", "zero-bubble", "zbv", "dualpipe-v", "asynchronous"
]

AXES = ("pp", "dp", "sharded", "cp", "tp")
"""From the slowest links to the fastest: neighbours along tp communicate most."""

ONE_STAGE = ("gpipe", "1f1b", "asynchronous")
"""Schedules in which a process has one stage; the others need several."""
V_SHAPED = ("zbv", "dualpipe-v")
"""Schedules in which a process has two stages, and the first and the last stage share one process."""


class Layout(ConfigModel):
    """How the model, the batch and the sequence are divided among processes."""

    dp: Degree = Field(1, description="replicas that divide the batch and add up their gradients")
    sharded: Degree = Field(
        1, description="processes that divide the batch and also weights, gradients and optimizer"
    )
    tp: Degree = Field(1, description="processes that divide heads and inner features (tensor parallel)")
    sequence: bool = Field(
        True, description="with tp, also divide the tokens between the blocks (sequence parallel)"
    )
    pp: Degree = Field(1, description="processes in a row that divide the layers (pipeline)")
    virtual: Degree = Field(1, description="pipeline stages on each process")
    cp: Degree = Field(1, description="processes that divide each sequence (context parallel)")
    micro_batches: Degree | None = Field(
        None,
        description="parts in which a replica's batch is computed; in a pipeline they flow behind each other",
    )
    schedule: Schedule = Field("1f1b", description="order of a pipeline step")
    staleness: Annotated[int, Field(ge=0, le=65536)] = Field(
        1, description="updates that a forward pass of the asynchronous schedule may miss; 0 is synchronous"
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activations computed again in the backward pass: none, all but matrix products, all",
    )
    cut: Literal["balanced", "measured", "fixed"] = Field(
        "balanced",
        description="give stages equal predicted cost, equal cost as measured on the first process,"
        " or equal numbers of layers",
    )
    stages: tuple[Degree, ...] | None = Field(
        None, description="layers of each stage, instead of cut, e.g. [5, 7]"
    )
    placement: Literal["sequential", "round-robin", "random", "load-aware"] = Field(
        "sequential", description="which process gets which stage"
    )
    recut: Literal["off", "propose", "apply"] = Field(
        "propose", description="when stages drift apart in speed: do nothing, suggest a better cut, or use it"
    )
    shares: tuple[Degree, ...] | None = Field(
        None, description="weights by which unequal replicas divide the batch, e.g. [3, 1]"
    )

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.pp * self.dp * self.sharded * self.cp * self.tp

    @property
    def replicas(self) -> int:
        """Number of parts into which the batch is divided."""
        return self.dp * self.sharded

    @property
    def asynchronous(self) -> bool:
        """Whether stages of a pipeline update their weights without waiting for each other."""
        return self.pp > 1 and self.schedule == "asynchronous"

    @property
    def stage_count(self) -> int:
        return self.pp * self.virtual

    def position_of(self, stage: int) -> int:
        """Return the position of a stage along the pipeline axis: round-robin, or down and up as a V."""
        if self.schedule in V_SHAPED and stage >= self.pp:
            return self.stage_count - 1 - stage
        return stage % self.pp

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degree of every axis, in the order of AXES."""
        return tuple(int(getattr(self, axis)) for axis in AXES)

    def __str__(self) -> str:
        named = [f"{axis}={degree}" for axis, degree in zip(AXES, self.degrees, strict=True) if degree > 1]
        if self.pp > 1:
            named.append(f"schedule={self.schedule}")
        if self.virtual > 1:
            named.append(f"virtual={self.virtual}")
        return ",".join(named) or "one process"

    @model_validator(mode="after")
    def _consistent(self) -> Layout:
        reason = next(_contradictions(self), None)
        if reason is not None:
            raise ValueError(reason)
        return self


class StageSlice(ConfigModel):
    """One stage of the pipeline."""

    stage: int
    first: int
    """The first layer of the stage."""
    until: int
    """The layer after its last one."""
    embedding: bool
    head: bool
    position: int
    """The stage's position along the pipeline axis."""
    cost: float
    """Its share of the whole model's work, as estimated when the model was partitioned."""


class Partition(ConfigModel):
    """Which process computes which part of the model."""

    pieces: tuple[StageSlice, ...]
    features: dict[str, int]
    """For each kind of weight that `tp` divides: the dimension along which it is divided."""
    how: str
    """The rule by which the layers were divided, as text."""

    def at(self, position: int) -> tuple[StageSlice, ...]:
        """Return the stages of one process along the pipeline axis."""
        return tuple(piece for piece in self.pieces if piece.position == position)


def parse_layout(text: str, start: Layout | None = None) -> Layout:
    """Read "dp=2,tp=2" or "pp=2,stages=5:7"; keys left out stay as in `start`."""
    given = (start or Layout()).model_dump()
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            raise AskedWrongly(f"--layout {text}: write it as axis=number,...", hint="example: dp=2,tp=2")
        if key not in Layout.model_fields:
            raise AskedWrongly(
                f"--layout {text}: unknown '{key}'", hint=did_you_mean(key, list(Layout.model_fields))
            )
        given[key] = value.split(":") if key in ("stages", "shares") else value
    try:
        return Layout.model_validate(given)
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(str(name) for name in detail["loc"])
        reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
        raise AskedWrongly(f"--layout {text}: {where + ': ' if where else ''}{reason}") from None


def check_layout(layout: Layout, shape: Shape, batch_sequences: int, micro_batch_sequences: int = 1) -> None:
    """Raise BadInput with the reason if this model or this batch cannot have the layout.

    `micro_batch_sequences` is used if the layout does not give the number of micro-batches.
    """
    if isinstance(shape, NgramShape | HmmShape):
        reason = next(_statistic_misfits(layout, shape), None)
    else:
        reason = next(_misfits(layout, shape, batch_sequences, micro_batch_sequences), None)
    if reason is not None:
        raise BadInput(f"layout {layout}: {reason}", hint="`windlass plan JOB show-cut` shows what fits")


def _contradictions(layout: Layout) -> Iterator[str]:
    """Yield contradictions that make a layout impossible for any model."""
    if layout.schedule in ONE_STAGE and layout.virtual > 1:
        yield f"schedule '{layout.schedule}' has one stage a process; use 'interleaved' with virtual"
    if layout.pp > 1 and layout.schedule in V_SHAPED and layout.virtual != 2:
        yield f"schedule '{layout.schedule}' needs virtual = 2"
    if layout.pp > 1 and layout.schedule not in ONE_STAGE and layout.virtual < 2:
        yield f"schedule '{layout.schedule}' needs virtual of at least 2"
    if layout.pp == 1 and layout.virtual > 1:
        yield "virtual stages need pp of at least 2"
    if layout.stages is not None and len(layout.stages) != layout.stage_count:
        yield f"stages lists {len(layout.stages)} numbers, but there are {layout.stage_count} stages"
    if layout.shares is not None and len(layout.shares) != layout.replicas:
        yield f"shares lists {len(layout.shares)} weights, but {layout.replicas} replicas divide the batch"
    if layout.asynchronous and (layout.sharded > 1 or layout.cp > 1):
        yield "the asynchronous schedule goes with pp, dp and tp only"


def _statistic_misfits(layout: Layout, shape: NgramShape | HmmShape) -> Iterator[str]:
    """Yield why a counted model cannot have the layout: its text can be divided, the model cannot."""
    if layout.world > layout.dp:
        yield f"a model of family '{shape.family}' is not divided; use dp to divide its text"
    if layout.dp > 1 and isinstance(shape, NgramShape):
        yield "n-grams are counted by one worker, on as many cores as [machine] threads says; leave out dp"


def _misfits(layout: Layout, shape: Network, batch_sequences: int, micro_sequences: int) -> Iterator[str]:
    """Yield why this model or this batch cannot have the layout."""
    if isinstance(shape, MlpShape) and layout.tp * layout.pp * layout.cp > 1:
        yield "an mlp is small; divide its text (dp) or its weights (sharded), not its layers or features"
    if layout.stage_count > shape.layers:
        yield f"{layout.stage_count} stages, but the model has only {shape.layers} layers"
    if layout.stages is not None and sum(layout.stages) != shape.layers:
        yield f"stages hold {sum(layout.stages)} layers in all, the model {shape.layers}"
    yield from _feature_misfits(layout, shape)
    pieces = layout.cp * 2 if layout.cp > 1 and shape.family != "bert" else layout.cp
    if shape.context % pieces:
        yield f"context {shape.context} is not a multiple of {pieces}, into which cp = {layout.cp} cuts it"
    yield from _batch_misfits(layout, batch_sequences, micro_sequences)


def _feature_misfits(layout: Layout, shape: Network) -> Iterator[str]:
    sizes = {"heads": shape.heads, "ffn_width": shape.ffn_width}
    if isinstance(shape, DecoderShape):
        sizes["kv_heads"] = shape.kv_heads
        if shape.experts:
            sizes["expert_width"] = shape.expert_width
            if not shape.dense_layers:
                del sizes["ffn_width"]
        if shape.shared_width:
            sizes["shared_width"] = shape.shared_width
    for name, size in sizes.items():
        if size % layout.tp:
            yield f"tp = {layout.tp} does not divide {name} {size}"
    if layout.tp > 1 and layout.sequence and (shape.context // layout.cp) % layout.tp:
        yield f"sequence parallel: tp = {layout.tp} does not divide the {shape.context // layout.cp} tokens"


def _batch_misfits(layout: Layout, batch_sequences: int, micro_sequences: int) -> Iterator[str]:
    replicas = layout.replicas
    if batch_sequences < replicas:
        yield f"{replicas} replicas cannot divide a batch of {batch_sequences} sequences"
    if layout.shares is None and batch_sequences % replicas:
        yield f"a batch of {batch_sequences} sequences is not a multiple of {replicas} replicas; give shares"
    if layout.shares is not None and (batch_sequences % sum(layout.shares)):
        yield f"a batch of {batch_sequences} sequences cannot be divided by shares {list(layout.shares)}"
    if layout.shares is not None and layout.pp > 1:
        yield "shares do not go with a pipeline, whose micro-batches must be alike"
    share = batch_sequences // replicas
    micro = layout.micro_batches
    if micro is not None and layout.shares is None and share % micro:
        yield f"{share} sequences of a replica cannot be cut into {micro} equal micro-batches"
    if layout.pp > 1:
        yield from schedule_misfits(layout, micro or share // micro_sequences)


def schedule_misfits(layout: Layout, micro: int) -> Iterator[str]:
    """Yield why a pipeline's schedule cannot run this number of micro-batches."""
    if layout.schedule in ("interleaved", "zero-bubble") and micro % max(1, micro // layout.pp):
        yield f"schedule '{layout.schedule}' wants a multiple of pp = {layout.pp} micro-batches, not {micro}"
    if layout.schedule == "dualpipe-v" and micro < layout.stage_count:
        yield f"schedule 'dualpipe-v' needs at least {layout.stage_count} micro-batches, not {micro}"
