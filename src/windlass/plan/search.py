"""Makes every choice that the job leaves open.

Input: a Job, facts about its corpus and about the machine. Output: a Run, with the reasons.

Sizes come from one dial, the width: depth, heads and feed-forward follow. With a time budget the dial
is turned until the expected loss is lowest: a wider model learns more from each token and sees fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from windlass import __version__
from windlass.plan.duration import StepTimeModel
from windlass.plan.hyperparameters import Effective, effective
from windlass.plan.local.calibrate import Experience
from windlass.plan.local.machine import MachineFacts
from windlass.plan.local.memory import local_memory
from windlass.plan.local.step import StepShape
from windlass.plan.loss import expected_loss
from windlass.plan.memory import training_bytes
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.job import Job, ModelSpec, objective_of
from windlass.spec.layout import Layout, check_layout
from windlass.spec.model.decoder import FEATURES
from windlass.spec.run import Run, RunPrediction
from windlass.spec.shape import BertShape, DecoderShape, MlpShape, Network
from windlass.spec.units import format_bytes, format_count, format_seconds

WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096)
HEAD_WIDTH = 64
DEFAULT_CONTEXT = 256
DEFAULT_TIME_S = 180.0
MIN_STEPS = 200
MICRO_BATCH_TOKENS = 4096
MAX_BATCH_TOKENS = 1 << 19
COMPILE_PAYS_AFTER_S = 420.0
"""Compiling costs about a minute of both cores and gains up to an eighth; see docs/benchmarks.md."""


@dataclass(frozen=True)
class CorpusFacts:
    """What the planner needs to know about a built corpus."""

    path: str
    digest: str
    vocabulary: int
    train_tokens: int
    validation_tokens: int


def plan_run(
    job: Job,
    corpus: CorpusFacts,
    machine: MachineFacts,
    *,
    start_shape: Network | None = None,
    start_from: str | None = None,
    experience: Experience | None = None,
) -> Run:
    """Turn a job into a run in which nothing is left open.

    With `experience`, time and memory are predicted from measurements of this machine.
    """
    clock = StepTimeModel(job, machine, experience)
    budget_s = job.train.time or (None if job.train.steps or job.train.tokens else DEFAULT_TIME_S)
    shape = start_shape or choose_shape(job, corpus, clock, budget_s)
    _check_fits(shape, corpus, machine, job.layout)
    batch = job.train.batch_sequences or divisible(choose_batch(job, shape, clock, budget_s), job.layout)
    steps = choose_steps(job, shape, batch, clock, budget_s)
    micro = job.train.micro_batch_sequences or choose_micro_batch(shape, batch, machine.memory_bytes)
    rate = job.train.learning_rate or choose_learning_rate(shape.width)
    warmup = job.train.warmup_steps if job.train.warmup_steps is not None else choose_warmup(steps)
    used = effective(job.train, Effective(batch, micro, rate, warmup, steps), job.layout)
    batch, micro, steps = used.batch_sequences, used.micro_batch_sequences, used.steps
    check_layout(job.layout, shape, batch, micro)
    speed = clock.tokens_per_s(shape, batch, micro)
    seconds = steps * batch * shape.context / speed
    predicted = RunPrediction(
        tokens_per_s=speed,
        seconds=seconds,
        loss=_loss(job, shape, steps * batch * shape.context, corpus) if start_shape is None else None,
        memory_bytes=_memory_bytes(clock, shape, batch, micro),
        reasons=_reasons(shape, steps, batch, corpus, clock, budget_s),
    )
    held_out = max(1, (corpus.validation_tokens - 1) // shape.context)
    # With a time budget, no more than a tenth of the time goes into the last evaluation.
    final = min(held_out, max(8, int(0.1 * budget_s * 3 * speed / shape.context))) if budget_s else None
    return Run(
        job=job,
        shape=shape,
        corpus=corpus.path,
        corpus_digest=corpus.digest,
        start_from=start_from,
        layout=job.layout,
        objective=objective_of(job),
        steps=steps,
        time_s=budget_s,
        batch_sequences=batch,
        micro_batch_sequences=micro,
        learning_rate=used.learning_rate,
        warmup_steps=used.warmup_steps,
        evaluate_every=job.train.evaluate_every or max(20, steps // 8),
        evaluate_sequences=min(job.train.evaluate_sequences or max(8, 2 * batch), held_out),
        final_sequences=final,
        checkpoint_every=job.train.checkpoint_every
        or max(20, min(steps // 4, round(60 * speed / (batch * shape.context)))),
        threads=job.machine.threads or machine.cores,
        compile=_compiles(job, machine, seconds),
        predicted=predicted,
        code=__version__,
    )


def choose_shape(job: Job, corpus: CorpusFacts, clock: StepTimeModel, budget_s: float | None) -> Network:
    """Take the sizes that the job gives, or turn the dial: to the wanted weights, or to the lowest loss."""
    if job.model.width is not None:
        return build_shape(job, corpus.vocabulary, job.model.width, job.model.layers)
    shapes = [build_shape(job, corpus.vocabulary, width) for width in WIDTHS]
    if job.model.parameters is not None:
        wanted = job.model.parameters
        return min(shapes, key=lambda s: abs(s.parameters - wanted))
    seconds = budget_s or DEFAULT_TIME_S

    def loss(shape: Network) -> float:
        speed = _usual_speed(clock, shape)
        return expected_loss(shape.matrix_parameters, seconds * speed, corpus.train_tokens, shape.vocabulary)

    return min((s for s in shapes if _fits(s, clock.machine, job.layout)), key=loss, default=shapes[0])


def build_shape(job: Job, vocabulary: int, width: int, layers: int | None = None) -> Network:
    """Derive all sizes from the width; what the job states stays."""
    model = job.model
    heads = model.heads or choose_heads(width, job.layout.tp)
    common: dict[str, Any] = {
        "vocabulary": vocabulary,
        "context": model.context or DEFAULT_CONTEXT,
        "layers": layers or max(2, min(width // 48, 48), job.layout.stage_count),
        "width": width,
        "heads": heads,
    }
    try:
        if model.family == "mlp":
            common |= {"heads": 1, "layers": layers or max(2, width // 128)}
            return MlpShape(**common, ffn_width=model.ffn_width or 4 * width, window=model.mlp.window)
        if model.family == "bert":
            return BertShape(**common, ffn_width=model.ffn_width or 4 * width)
        return _decoder(model, common)
    except ValidationError as error:
        reason = str(error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"]))
        raise BadJob(f"[model] {reason}") from None


def _decoder(model: ModelSpec, common: dict[str, Any]) -> DecoderShape:
    """Fill in the sizes of a decoder; a gated feed-forward part has three matrices instead of two."""
    width = common["width"]
    features = FEATURES[model.family]
    inner = model.ffn_width or (
        4 * width if not features.get("gated", True) else -(-8 * width // 3 // 64) * 64
    )
    fields: dict[str, Any] = {"ffn_width": inner, "kv_heads": model.kv_heads or common["heads"]}
    if "tied" not in features:
        fields["tied"] = model.tied
    if features.get("positions") != "learned":
        fields |= {"rope_theta": model.rope_theta, "rope_scaling": model.rope_scaling}
    if model.window is not None:
        fields |= {"window": model.window, "window_layers": _window_layers(model.family, common["layers"])}
    if model.experts:
        expert = model.expert_width or inner
        fields |= {
            "experts": model.experts, "experts_per_token": model.experts_per_token, "expert_width": expert,
            "balance_loss": model.balance_loss, "router_z_loss": model.router_z_loss,
        }  # fmt: skip
    return DecoderShape(family=model.family, **common, **fields)


def _window_layers(family: str, layers: int) -> tuple[int, ...] | None:
    """Return the layers that have the window: by default all."""
    if family in ("gemma2", "gpt_oss"):
        return tuple(range(0, layers, 2))
    if family == "gemma3":
        return tuple(layer for layer in range(layers) if (layer + 1) % 6)
    return None


def choose_heads(width: int, tp: int) -> int:
    """Heads of about HEAD_WIDTH that divide the width and that `tp` processes can divide among them."""
    wanted = max(1, width // HEAD_WIDTH)
    possible = [heads for heads in range(tp, width + 1, tp) if width % (2 * heads) == 0]
    return min(possible, key=lambda heads: (abs(heads - wanted), heads), default=wanted)


def choose_batch(job: Job, shape: Network, clock: StepTimeModel, budget_s: float | None) -> int:
    """Enough steps to learn in, then as large a batch as the budget allows."""
    if job.train.tokens is not None:
        total = float(job.train.tokens)
    elif budget_s is not None:
        total = budget_s * _usual_speed(clock, shape)
    else:
        total = float(MICRO_BATCH_TOKENS * (job.train.steps or MIN_STEPS))
    tokens = max(shape.context, min(MAX_BATCH_TOKENS, total / (4 * MIN_STEPS)))
    return max(1, 1 << round(tokens / shape.context).bit_length() - 1)


def divisible(batch: int, layout: Layout) -> int:
    """Return the next larger batch that the replicas of a layout, and the stages of each, can divide."""
    unit = (sum(layout.shares) if layout.shares else layout.replicas) * (layout.micro_batches or 1)
    if layout.pp > 1 and layout.micro_batches is None:
        unit *= layout.stage_count
    return -(-batch // unit) * unit


def choose_steps(job: Job, shape: Network, batch: int, clock: StepTimeModel, budget_s: float | None) -> int:
    if job.train.steps is not None:
        return job.train.steps
    tokens = batch * shape.context
    if job.train.tokens is not None:
        return max(1, -(-job.train.tokens // tokens))
    assert budget_s is not None
    micro = choose_micro_batch(shape, batch, clock.machine.memory_bytes)
    return max(1, int(budget_s * clock.tokens_per_s(shape, batch, micro) / tokens))


def choose_micro_batch(shape: Network, batch: int, memory_bytes: int) -> int:
    """The largest divisor of the batch that is fast (it fits the caches) and fits in half of the memory."""
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    quick = [d for d in divisors if d * shape.context <= MICRO_BATCH_TOKENS]
    fitting = [d for d in quick if training_bytes(shape, d) <= memory_bytes / 2]
    return max(fitting, default=1)


def choose_learning_rate(width: int) -> float:
    """Wider models want smaller steps: 2e-3 at width 256, falling with its power of 3/4."""
    return float(f"{2e-3 * (256 / width) ** 0.75:.2g}")


def choose_warmup(steps: int) -> int:
    return min(steps // 10, 1000)


def _usual_speed(clock: StepTimeModel, shape: Network) -> float:
    """Return tokens a second with micro-batches of the usual size, for choices that come before the batch."""
    sequences = max(1, MICRO_BATCH_TOKENS // shape.context) * clock.job.layout.replicas
    return clock.tokens_per_s(shape, sequences, sequences // clock.job.layout.replicas)


def _memory_bytes(clock: StepTimeModel, shape: Network, batch: int, micro: int) -> int:
    known, layout = clock.measured, clock.job.layout
    if known is None:
        return training_bytes(shape, micro, layout)
    return local_memory(known.profile, StepShape(shape, layout, batch, micro, threads=1)).bytes


def _loss(job: Job, shape: Network, tokens: int, corpus: CorpusFacts) -> float | None:
    """The law is one of transformers that predict the next token; for others no law is known."""
    if objective_of(job) == "masked" or isinstance(shape, MlpShape):
        return None
    return expected_loss(shape.matrix_parameters, tokens, corpus.train_tokens, shape.vocabulary)


def _compiles(job: Job, machine: MachineFacts, seconds: float) -> bool:
    if job.machine.compile == "on":
        return True
    return job.machine.compile == "auto" and machine.has_compiler and seconds > COMPILE_PAYS_AFTER_S


def _fits(shape: Network, machine: MachineFacts, layout: Layout) -> bool:
    """Whether one process fits; the launcher decides how many share a machine."""
    return training_bytes(shape, 1, layout) <= machine.memory_bytes


def _check_fits(shape: Network, corpus: CorpusFacts, machine: MachineFacts, layout: Layout) -> None:
    if shape.vocabulary < corpus.vocabulary:
        raise BadInput(
            f"the model knows {shape.vocabulary} tokens, but the corpus has {corpus.vocabulary}",
            hint="build the corpus with the model's own tokenizer: [corpus.tokenizer] kind = 'file'",
        )
    for part, tokens in (("training", corpus.train_tokens), ("validation", corpus.validation_tokens)):
        if tokens < shape.context + 1:
            raise BadInput(
                f"the {part} text has {tokens} tokens, fewer than one sequence of {shape.context + 1}",
                hint="add text, or set a smaller [model] context",
            )
    if not _fits(shape, machine, layout):
        needed = format_bytes(training_bytes(shape, 1, layout))
        raise BadInput(
            f"training {format_count(shape.parameters)} weights needs {needed},"
            f" and {format_bytes(machine.memory_bytes)} is free",
            hint="set a smaller [model] parameters or context, or divide it: --layout sharded=N",
        )


def _reasons(
    shape: Network, steps: int, batch: int, corpus: CorpusFacts, clock: StepTimeModel, budget_s: float | None
) -> tuple[str, ...]:
    tokens, machine = steps * batch * shape.context, clock.machine
    epochs = tokens / corpus.train_tokens
    notes = [
        f"{format_count(shape.parameters)} weights: {shape.layers} layers of width {shape.width}",
        f"{format_count(tokens)} tokens in {steps} steps, {epochs:.2g} epochs of the corpus",
        f"this machine multiplies at {machine.peak_flops / 1e9:.0f} GFLOP/s on {machine.cores} cores",
    ]
    if clock.measured is not None:
        correction = clock.measured.correction
        runs = (
            f", corrected by {correction.factor:.2f} after {correction.runs} runs" if correction.runs else ""
        )
        notes.append(f"time and memory are by this machine's profile{runs}")
    if budget_s is not None:
        notes.append(f"sized for {format_seconds(budget_s)} of training")
    return tuple(notes)
