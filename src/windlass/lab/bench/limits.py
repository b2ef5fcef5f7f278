"""Our engine compared with itself and with the machine: gain and cost of the prefix cache, and how close
prefill comes to the machine's peak FLOP/s and decoding to its memory bandwidth.

The machine's limits are measured before and after, by torch; the higher value counts.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from windlass.cluster.launch.local_process import LocalProcess
from windlass.lab.bench.bench_models import subject
from windlass.lab.bench.contenders import ContenderLoad, OurEngine, our_engine
from windlass.lab.bench.serve import ServeBenchOptions, ServeCell, load_of
from windlass.lab.bench.task import BenchTask, draw_task, pace_of
from windlass.spec.processes import MACHINE_LIMITS
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.shape import DecoderShape

SHARED, OWN = 1000, 24
"""Prompt tokens that are shared with other prompts, and that are unique."""
PREFILL = 1024
TRIES = 5
COST_ROUNDS = 8
COST_CONCURRENCY = 8
SEED = 7
WEIGHT_BYTES = {"float32": 4.0, "int8": 1.0}


def limit_figures(
    cells: list[ServeCell], options: ServeBenchOptions, home: Path, report: Report
) -> dict[str, float]:
    """Measure what needs separate engines; the bandwidth share comes from the existing cells."""
    before = machine_limits(home)
    small, base = (load_of(model, "float32", options, home) for model in ("small", "base"))
    log = home / "logs" / "bench-engine.log"
    report(Progress("limits", 0, 3, "parts"))
    with our_engine(base, log) as engine:
        prefill_s = _prefill_s(engine)
        speedup = _prefix_speedup(engine)
    report(Progress("limits", 1, 3, "parts"))
    cost = _prefix_cost(small, log, options)
    report(Progress("limits", 2, 3, "parts"))
    after = machine_limits(home)
    limits = {name: max(before[name], after[name]) for name in before}
    report(Progress("limits", 3, 3, "parts"))
    return {
        "prefix_speedup": speedup,
        "prefix_cost": cost,
        "prefill_share_of_peak": prefill_flops(subject("base"), PREFILL) / prefill_s / limits["flops"],
        **bandwidth_shares(cells, limits["read_bytes_per_s"]),
        "gemm_peak_gflops": limits["flops"] / 1e9,
        "read_gbytes_per_s": limits["read_bytes_per_s"] / 1e9,
    }


def machine_limits(home: Path) -> dict[str, float]:
    """Measure in a process that may load torch."""
    log = home / "logs" / "bench-limits.log"
    with LocalProcess("limits", MACHINE_LIMITS, [], log) as process:
        return process.result()


def prefill_flops(shape: DecoderShape, length: int) -> float:
    """Count the FLOPs of a prompt; logits are computed for its last token only."""
    layers = 2.0 * shape.layers * shape.layer_matrix_parameters * length
    attention = 4.0 * shape.layers * shape.attention_width * shape.seen_keys(length) * length
    return layers + attention + 2.0 * shape.vocabulary * shape.width


def bandwidth_shares(cells: list[ServeCell], read_bytes_per_s: float) -> dict[str, float]:
    """Return the share of the memory bandwidth used by a single request on the large model.

    Every weight of a matrix product is read once per token, at its stored size.
    """
    found = {}
    for cell in cells:
        if cell.model == "base" and cell.concurrency == 1:
            token_bytes = subject("base").matrix_parameters * WEIGHT_BYTES[cell.precision]
            name = "bandwidth_share" if cell.precision == "float32" else f"bandwidth_share_{cell.precision}"
            found[name] = token_bytes / cell.ours.pace.between_p50_s / read_bytes_per_s
    return found


def _prefill_s(engine: OurEngine) -> float:
    """Return the time to the first token of a long uncached prompt; the best of several."""
    times = []
    for number in range(TRIES):
        task = _draw((SEED, number), PREFILL, output=2)
        times.append(pace_of(engine.answer(task)).first_p50_s)
    return min(times)


def _prefix_speedup(engine: OurEngine) -> float:
    """Return the speed-up of the first token when the prefix is cached."""
    cold = [_first_s(engine, _draw((SEED, 100 + n), SHARED + OWN, output=2)) for n in range(TRIES)]
    shared = _draw((SEED, 200), SHARED, output=2).prompts[0]
    ends = [_draw((SEED, 300 + n), OWN, output=2).prompts[0] for n in range(TRIES + 1)]
    answers = engine.answer(BenchTask([shared + end for end in ends], 2, concurrency=1))
    warm = [answer.times_s[0] - answer.sent_s for answer in answers[1:]]
    return statistics.median(cold) / statistics.median(warm)


def _prefix_cost(load: ContenderLoad, log: Path, options: ServeBenchOptions) -> float:
    """Return the share of tokens/s that the cache costs when no prompts share a prefix.

    Rounds alternate which engine goes first, and the medians of many short tasks are compared.
    """
    rates: dict[str, list[float]] = {"lru": [], "off": []}
    with (
        our_engine(load, log, ["--prefix-cache", "lru"]) as cached,
        our_engine(load, log, ["--prefix-cache", "off"]) as plain,
    ):
        engines = {"lru": cached, "off": plain}
        for number in range(COST_ROUNDS + 1):
            task = _draw(
                (SEED, 400 + number), options.prompt, output=options.output, requests=COST_CONCURRENCY
            )
            for name in sorted(engines, reverse=number % 2 == 0):
                pace = pace_of(engines[name].answer(task))
                if number:  # the first round is a warm-up
                    rates[name].append(pace.tokens_per_s)
    ratios = np.array(rates["lru"]) / np.array(rates["off"])
    return 1.0 - float(np.median(ratios))


def _first_s(engine: OurEngine, task: BenchTask) -> float:
    return pace_of(engine.answer(task)).first_p50_s


def _draw(seed: tuple[int, int], prompt: int, *, output: int, requests: int = 1) -> BenchTask:
    vocabulary = subject("small").vocabulary
    return draw_task(
        seed, vocabulary=vocabulary, prompt=prompt, output=output, concurrency=requests, requests=requests
    )
