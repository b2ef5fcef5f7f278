"""Plans runs of families that are trained by counting: what they take, without gradients, batches or rates.

Input: a Job, facts about its corpus and the machine. Output: a Run. A step of an n-gram run is one of its
stages, a step of a hidden Markov run one iteration over the whole text.
"""

from __future__ import annotations

from windlass import __version__
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts
from windlass.spec.job import Job
from windlass.spec.layout import check_layout
from windlass.spec.run import Prediction, Run
from windlass.spec.shape import HmmShape, NgramShape

DEFAULT_CONTEXT = 256
NGRAM_STAGES = 4
"""Count, merge, link, estimate: see train/counting."""
ITERATIONS = 30


def plan_statistic(job: Job, corpus: CorpusFacts, machine: MachineFacts) -> Run:
    """Turn a job into a run in which nothing is left open."""
    shape = build_statistic(job, corpus.vocabulary)
    steps = NGRAM_STAGES if isinstance(shape, NgramShape) else job.train.steps or ITERATIONS
    sequences = max(1, (corpus.train_tokens - 1) // shape.context)
    held_out = max(1, (corpus.validation_tokens - 1) // shape.context)
    check_layout(job.layout, shape, sequences)
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
        predicted=_predicted(shape, steps, corpus, machine),
        code=__version__,
    )


def build_statistic(job: Job, vocabulary: int) -> NgramShape | HmmShape:
    context = job.model.context or DEFAULT_CONTEXT
    if job.model.family == "ngram":
        return NgramShape(vocabulary=vocabulary, context=context, order=job.model.ngram.order)
    return HmmShape(vocabulary=vocabulary, context=context, states=job.model.hmm.states)


def _predicted(
    shape: NgramShape | HmmShape, steps: int, corpus: CorpusFacts, machine: MachineFacts
) -> Prediction:
    flops = 6.0 * shape.states**2 if isinstance(shape, HmmShape) else 2e4 * shape.order
    speed = 0.3 * machine.peak_flops / flops
    return Prediction(
        tokens_per_s=speed,
        seconds=steps * corpus.train_tokens / speed,
        loss=None,
        memory_bytes=16 * max(shape.parameters, shape.vocabulary),
    )
