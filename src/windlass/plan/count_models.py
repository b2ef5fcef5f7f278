"""Plans runs of families that are trained by counting, without gradients, batches or learning rates.

Input: a Job, facts about its corpus, samples of it and the machine. Output: a Run. A step of an n-gram run
is one of its stages, a step of a hidden Markov run one iteration over the whole text. Their costs are in
`local.ngram` and `local.hmm`; earlier runs of the family correct the time (`local.calibrate`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass import __version__
from windlass.plan.local.calibrate import Correction
from windlass.plan.local.hmm import hidden_cost
from windlass.plan.local.machine import SORT_S, MachineFacts
from windlass.plan.local.ngram import Growth, NgramPrediction, all_different, counting_cost
from windlass.plan.search import CorpusFacts
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.job import Job
from windlass.spec.layout import check_layout
from windlass.spec.run import Run, RunPrediction
from windlass.spec.shape import HmmShape, NgramShape
from windlass.spec.units import format_bytes, format_count, format_seconds

DEFAULT_CONTEXT = 256
NGRAM_STAGES = 4
"""Count, merge, link, estimate: see train/ngram."""
ITERATIONS = 30
MAX_ITERATIONS = 1000
NUMBER_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class Observed:
    """Measurements before the run: samples of the text, sorting speed, earlier runs."""

    growth: Growth | None = None
    """For n-gram runs only; without it, all n-grams of the text are assumed to differ."""
    sort_s: float = SORT_S
    correction: Correction = field(default_factory=Correction)


NOTHING = Observed()


def plan_statistic(job: Job, corpus: CorpusFacts, machine: MachineFacts, observed: Observed = NOTHING) -> Run:
    """Turn a job into a run in which nothing is left open."""
    shape = build_statistic(job, corpus.vocabulary)
    sequences = max(1, (corpus.train_tokens - 1) // shape.context)
    held_out = max(1, (corpus.validation_tokens - 1) // shape.context)
    check_layout(job.layout, shape, sequences)
    if isinstance(shape, NgramShape):
        steps, predicted = _counted(job, shape, corpus, machine, observed)
    else:
        steps, predicted = _expected(job, shape, corpus, machine, observed)
    _check_fits(shape, predicted, machine)
    return Run(
        job=job,
        shape=shape,
        corpus=corpus.path,
        corpus_digest=corpus.digest,
        start_from=None,
        layout=job.layout,
        objective="causal",
        steps=steps,
        time_s=job.train.time,
        batch_sequences=sequences,
        micro_batch_sequences=1,
        learning_rate=0.0,
        warmup_steps=0,
        evaluate_every=job.train.evaluate_every or max(1, steps // 5),
        evaluate_sequences=min(job.train.evaluate_sequences or held_out, held_out),
        final_sequences=None,
        checkpoint_every=job.train.checkpoint_every or 1,
        threads=job.machine.threads or machine.cores,
        compile=False,
        predicted=predicted,
        code=__version__,
    )


def build_statistic(job: Job, vocabulary: int) -> NgramShape | HmmShape:
    context = job.model.context or DEFAULT_CONTEXT
    if job.model.family == "ngram":
        return NgramShape(vocabulary=vocabulary, context=context, order=job.model.ngram.order)
    return HmmShape(vocabulary=vocabulary, context=context, states=job.model.hmm.states)


def _counted(
    job: Job, shape: NgramShape, corpus: CorpusFacts, machine: MachineFacts, observed: Observed
) -> tuple[int, RunPrediction]:
    """Return the stages of an n-gram run and what they take."""
    spec = job.model.ngram
    given = [key for key in ("steps", "tokens") if getattr(job.train, key) is not None]
    if given:
        raise BadJob(
            f"[train] {given[0]} does not go with family 'ngram': the whole text is counted once",
            hint="[model.ngram] order and prune decide how much is learned; [corpus] says from which text",
        )
    cost = counting_cost(
        observed.growth or all_different(corpus.train_tokens, shape.order),
        tokens=corpus.train_tokens,
        held_out=corpus.validation_tokens,
        vocabulary=corpus.vocabulary,
        bound=spec.memory,
        workers=job.machine.threads or machine.cores,
        sort_s=observed.sort_s,
    )
    seconds = cost.seconds * observed.correction.factor
    reasons = [*_sizes(cost, spec.memory), *_time_reasons(seconds, observed.correction, "ngram")]
    if job.train.time is not None and seconds > job.train.time:
        given_s = format_seconds(job.train.time)
        reasons.append(f"longer than the requested {given_s}: a lower order or less text is quicker")
    return NGRAM_STAGES, RunPrediction(
        tokens_per_s=corpus.train_tokens / seconds,
        seconds=seconds,
        loss=None,
        memory_bytes=cost.memory_bytes,
        plain_s=cost.seconds,
        reasons=tuple(reasons),
    )


def _sizes(cost: NgramPrediction, bound: int) -> list[str]:
    found = " + ".join(format_count(n) for n in cost.nodes)
    return [
        f"about {found} different n-grams, by the growth of their number in samples of the text",
        f"{format_count(sum(cost.ngrams))} of them stay: a model of {format_bytes(cost.model_bytes)}",
        f"counted within {format_bytes(bound)} of memory and {format_bytes(cost.disk_bytes)} of disk",
    ]


def _expected(
    job: Job, shape: HmmShape, corpus: CorpusFacts, machine: MachineFacts, observed: Observed
) -> tuple[int, RunPrediction]:
    """Return the iterations of a hidden Markov run, as many as its time allows, and what they take."""
    threads = job.machine.threads or machine.cores
    cost = hidden_cost(
        shape, tokens=corpus.train_tokens, held_out=corpus.validation_tokens, threads=threads,
        number_bytes=NUMBER_BYTES[job.model.hmm.precision],
        peak_flops=machine.peak_flops * min(1.0, threads / machine.cores),
    )  # fmt: skip
    factor = observed.correction.factor
    each = factor * (cost.iteration_s + cost.evaluation_s / 5)
    steps = choose_iterations(job, corpus.train_tokens, each, factor * (cost.start_s + cost.evaluation_s))
    plain = cost.start_s + steps * (cost.iteration_s + cost.evaluation_s / 5) + cost.evaluation_s
    why = f"{format_seconds(factor * cost.iteration_s)} an iteration"
    reasons = [
        f"{steps} iterations, {why}; it ends earlier when an iteration gains less than "
        f"{job.model.hmm.min_gain:g} nats a token",
        *_time_reasons(plain * factor, observed.correction, "hmm"),
    ]
    return steps, RunPrediction(
        tokens_per_s=cost.tokens_per_s / factor, seconds=plain * factor, loss=None,
        memory_bytes=cost.memory_bytes, plain_s=plain, reasons=tuple(reasons),
    )  # fmt: skip


def choose_iterations(job: Job, tokens: int, iteration_s: float, start_s: float) -> int:
    """Return the configured iterations, or those that the time allows, or the usual number."""
    if job.train.steps is not None:
        return job.train.steps
    if job.train.tokens is not None:
        return max(1, round(job.train.tokens / max(1, tokens)))
    if job.train.time is not None:
        return max(1, min(MAX_ITERATIONS, int((job.train.time - start_s) / iteration_s)))
    return ITERATIONS


def _time_reasons(seconds: float, correction: Correction, family: str) -> list[str]:
    low, high = correction.interval(seconds)
    between = f"four of five such runs take {format_seconds(low)} to {format_seconds(high)}"
    if not correction.runs:
        return [between]
    runs = f"{correction.runs} earlier {family} run" + ("s" if correction.runs > 1 else "")
    return [f"{between}: {runs} on this machine took {correction.factor:.2f} times what was expected"]


def _check_fits(shape: NgramShape | HmmShape, predicted: RunPrediction, machine: MachineFacts) -> None:
    if predicted.memory_bytes > machine.memory_bytes:
        less = "[model.ngram] memory" if isinstance(shape, NgramShape) else "[model.hmm] states"
        raise BadInput(
            f"this {shape.family} model needs about {format_bytes(predicted.memory_bytes)} of memory; "
            f"{format_bytes(machine.memory_bytes)} are free",
            hint=f"lower {less}, or take a smaller vocabulary",
        )
