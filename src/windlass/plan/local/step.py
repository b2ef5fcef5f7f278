"""The time of a step on this machine, from what `windlass probe` measured.

    parts of a pass (`kernel_costs`) -> curves through measured passes (`overhead`) -> layers,
    micro-batches, pipeline (`pipeline_time`), exchange of gradients, update -> seconds of a step

It is for processes that compute in float32 on cores of their own; with more processes than cores they take
turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.plan.hyperparameters import micro_batches_of
from windlass.plan.local.kernel_costs import ProcessShare, dims_of
from windlass.plan.local.overhead import ends_s, layer_s
from windlass.plan.local.pipeline_time import pipeline_s
from windlass.plan.local.profile import Profile
from windlass.plan.local.rates import MachineRates, rates_for
from windlass.plan.local.stages import stage_layers
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.spec.shape import Network

STEP_OVERHEAD_S = 0.002
"""Reading samples, synchronising and reporting the step."""
COMPILED = 0.89
"""Share of the time of passes that is left when torch compiles them (docs/benchmarks.md)."""
FORWARD = 1 / 3
"""Share of a forward and backward pass: one product of three."""
CHEAP = 0.15
"""Share of a forward pass that selective recomputation repeats: all but products and attention."""


@dataclass(frozen=True)
class StepShape:
    """A step to be predicted, as far as its time depends on it."""

    shape: Network
    layout: Layout
    batch_sequences: int
    micro_batch_sequences: int
    threads: int
    """Of a single process; several divide the cores."""
    compiled: bool = False
    every: int = 1
    """Steps between two exchanges of replicas."""

    @property
    def micro_batches(self) -> int:
        return micro_batches_of(self.layout, self.batch_sequences, self.micro_batch_sequences)


@dataclass(frozen=True)
class LocalStep:
    """The predicted time of a step."""

    seconds: float
    parts: dict[str, float]


def step_of(run: Run) -> StepShape:
    sync = run.job.sync
    return StepShape(
        shape=run.network,
        layout=run.layout,
        batch_sequences=run.batch_sequences,
        micro_batch_sequences=run.micro_batch_sequences,
        threads=run.threads,
        compiled=run.compile,
        every=sync.every if sync.local else 1,
    )


def local_step(profile: Profile, step: StepShape) -> LocalStep:
    """Predict a step on the machine of a profile."""
    world, cores = step.layout.world, profile.cores
    threads = step.threads if world == 1 else max(1, min(step.threads, cores // world))
    rates = rates_for(profile, min(world, cores), threads)
    turns = max(1.0, world * threads / cores)
    passes = _passes_s(rates, step) * (COMPILED if step.compiled else 1.0)
    weights = held_weights(step.shape, step.layout)
    parts = {
        "passes": turns * passes,
        "accumulating": turns * (step.micro_batches - 1) * rates.stream_s(weights),
        "exchange": turns * _exchange_s(rates, step) / step.every,
        "update": turns * rates.update_s(weights),
        "overhead": STEP_OVERHEAD_S,
    }
    return LocalStep(sum(parts.values()), parts)


def held_weights(shape: Network, layout: Layout) -> float:
    """Return the weights that the fullest process holds and updates."""
    dims, counts = dims_of(shape), stage_layers(shape, layout)
    ends = shape.parameters - shape.layers * dims.layer_weights
    # A tied matrix lies at both ends of a pipeline, an untied one has two parts.
    at_last = ends if layout.pp == 1 or dims.tied else ends / 2
    held = [float(layers * dims.layer_weights) for layers in counts]
    held[0] += at_last if layout.pp > 1 else 0.0
    held[-1] += at_last
    return max(held) / (layout.tp * layout.sharded)


def _passes_s(rates: MachineRates, step: StepShape) -> float:
    """All micro-batches, forward and backward."""
    layout = step.layout
    share = ProcessShare(
        step.micro_batch_sequences, layout.tp, layout.sharded, layout.cp, sequence_parallel=layout.sequence
    )
    dims = dims_of(step.shape)
    layer, ends = layer_s(rates, dims, share), ends_s(rates, dims, share)
    again = {"none": 0.0, "selective": CHEAP * FORWARD, "full": FORWARD}[layout.recompute] * layer
    if layout.pp == 1:
        return step.micro_batches * (step.shape.layers * (layer + again) + ends)
    counts = stage_layers(step.shape, layout)
    hand_s = rates.exchange_s("pass", 4.0 * share.tokens(dims) * step.shape.width / share.tp)
    forward = [rates.setting.handing_s / 2 + FORWARD * count * layer for count in counts]
    backward = [f + count * (FORWARD * layer + again) for f, count in zip(forward, counts, strict=True)]
    # The loss is computed with its gradients in the forward pass, so all of it comes before going back.
    forward[-1] += ends
    return pipeline_s(layout.schedule, forward, backward, step.micro_batches, hand_s, virtual=layout.virtual)


def _exchange_s(rates: MachineRates, step: StepShape) -> float:
    """Gradients of replicas are added up tensor by tensor, and small ones together; so are those of processes
    that divide a sequence."""
    layout, dims = step.layout, dims_of(step.shape)
    if layout.dp == 1 and layout.cp == 1:
        return 0.0
    divided = 4.0 / (layout.tp * layout.sharded)
    layers = max(stage_layers(step.shape, layout))
    matrices = [inputs * outputs for inputs, outputs, _ in dims.products] * layers + [dims.end_weights]
    once = sum(rates.exchange_s("sum", divided * size) for size in matrices)
    return once * ((layout.dp > 1) + (layout.cp > 1))
