"""Our training speed compared with Hugging Face's Trainer and with the machine's peak FLOP/s.

The same Llama shape, tokens, batch, optimizer and threads. In every round each contender takes one step and
the peak is measured, so that a noisy machine slows all alike; ratios are taken round by round, and their
median counts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.models.huggingface import save_model
from windlass.plan.local.machine import MachineFacts, usable_cores
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.job import Corpus, Job, MachineSpec, TokenizerSpec, Train
from windlass.spec.processes import HF_BASELINE
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.protocol.progress import silent
from windlass.spec.run import Run
from windlass.spec.shape import DecoderShape, Network
from windlass.train.event_log import EventLog
from windlass.train.loop import save_run
from windlass.train.machine_flops import peak_flops
from windlass.train.trainer import Trainer

PACKAGES = ("asyncio", "email", "http", "json", "unittest", "xml", "concurrent", "importlib", "logging")
WARM_STEPS = 3
SHAPE = DecoderShape(
    vocabulary=32000, context=256, layers=6, width=288, heads=6, kv_heads=6, ffn_width=768, tied=True
)
"""A small Llama of 15 million weights, with Llama 2's vocabulary."""
BATCH_SEQUENCES = 8

KINDS = ("eager", "compiled")

Rounds = dict[str, list[float]]


def bench_train(repeats: int) -> dict[str, Any]:
    """Measure, and return the figures."""
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        raise BadInput("the peer, transformers, is not installed", hint="pip install 'windlass[bench]'")
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        run = bench_run(Path(scratch))
        rounds = _rounds(run, Path(scratch), repeats)
    return {"figures": _figures(run, rounds), "rounds": rounds, "run": _describe(run)}


def bench_run(home: Path) -> Run:
    """Build a small real corpus and a run of the measured shape."""
    job = Job(
        name="bench",
        corpus=bench_corpus(8192),
        train=Train(steps=1000, batch_sequences=BATCH_SEQUENCES, micro_batch_sequences=BATCH_SEQUENCES),
        machine=MachineSpec(compile="off"),
    )
    return planned(job, home, cores=usable_cores(), start_shape=SHAPE)


def bench_corpus(vocabulary: int) -> Corpus:
    """A part of Python's source: real text that every machine has."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    sources = tuple(str(stdlib / name) for name in PACKAGES)
    return Corpus(sources=sources, tokenizer=TokenizerSpec(vocabulary=vocabulary))


def planned(job: Job, home: Path, *, cores: int = 1, start_shape: Network | None = None) -> Run:
    """Build a job's corpus, once, and plan its run for a sufficiently large machine."""
    path = build_corpus(job.corpus, home, silent)
    corpus = load_corpus(path)
    facts = CorpusFacts(
        path=str(path),
        digest=corpus.digest,
        vocabulary=corpus.tokenizer.vocabulary,
        train_tokens=corpus.train.tokens,
        validation_tokens=corpus.validation.tokens,
    )
    machine = MachineFacts(cores=cores, memory_bytes=1 << 40, peak_flops=1e11, has_compiler=True)
    return plan_run(job, facts, machine, start_shape=start_shape)


def _rounds(run: Run, scratch: Path, repeats: int) -> Rounds:
    """Take steps with all contenders in turn; return the seconds of each, and the peak of each round."""
    record = EventLog(scratch, quiet=True)
    save_run(scratch, run)
    ours = {
        kind: Trainer(run.model_copy(update={"compile": kind == "compiled"}), scratch, record)
        for kind in KINDS
    }
    save_model(ours["eager"].strategy.stages[0].model, scratch / "model")
    steps = WARM_STEPS + repeats + 1  # the clean-up of a finished peer would disturb the last round
    times: Rounds = {
        name: [] for name in (*(f"{who}_{k}" for who in ("ours", "theirs") for k in KINDS), "peak")
    }
    emit({"event": "note", "message": "warming up; compiling takes a minute"})
    with _peer(scratch, "eager", steps) as eager, _peer(scratch, "compiled", steps) as compiled:
        theirs = {"eager": eager, "compiled": compiled}
        for number in range(1 - WARM_STEPS, repeats + 1):
            for kind in KINDS:
                times[f"theirs_{kind}"].append(next(theirs[kind]))
                times[f"ours_{kind}"].append(ours[kind].train_step().seconds)
            times["peak"].append(peak_flops(ours["eager"].device, min_s=0.2))
            done = max(0, number)
            emit({"event": "progress", "stage": "rounds", "done": done, "total": repeats, "unit": "rounds"})
    record.close()
    return {name: values[WARM_STEPS:] for name, values in times.items()}


@contextmanager
def _peer(folder: Path, kind: str, steps: int) -> Iterator[Iterator[float]]:
    """Start the peer in an environment without our settings; yield the seconds of its steps."""
    command = [sys.executable, "-m", HF_BASELINE, str(folder), str(folder / "model")]
    command += ["--steps", str(steps), *(["--compiled"] if kind == "compiled" else [])]
    environment = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"}
    peer = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
    )
    try:
        yield _steps_of(peer)
    finally:
        peer.kill()
        peer.communicate()


def _steps_of(peer: subprocess.Popen[str]) -> Iterator[float]:
    assert peer.stdin is not None
    assert peer.stdout is not None
    while True:
        peer.stdin.write("go\n")
        for line in peer.stdout:
            if line.startswith('{"seconds"'):
                yield float(json.loads(line)["seconds"])
                break
        else:
            raise ProcessFailed(f"the peer ended with code {peer.wait()}")


def _figures(run: Run, rounds: Rounds) -> dict[str, float]:
    flops = run.network.training_flops_per_token() * run.tokens_per_step
    shares = [flops / s / peak for s, peak in zip(rounds["ours_compiled"], rounds["peak"], strict=True)]
    speeds = {
        f"{name}_tokens_per_s": run.tokens_per_step / statistics.median(seconds)
        for name, seconds in rounds.items()
        if name != "peak"
    }
    return {
        "vs_hf_eager": _ratio(rounds["theirs_eager"], rounds["ours_compiled"]),
        "vs_hf_compiled": _ratio(rounds["theirs_compiled"], rounds["ours_compiled"]),
        "share_of_gemm_peak": statistics.median(shares),
        "eager_vs_hf_eager": _ratio(rounds["theirs_eager"], rounds["ours_eager"]),
        "compiled_vs_our_eager": _ratio(rounds["ours_eager"], rounds["ours_compiled"]),
        **speeds,
        "gemm_peak_gflops": statistics.median(rounds["peak"]) / 1e9,
    }


def _ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def _describe(run: Run) -> dict[str, Any]:
    return {
        "shape": run.network.model_dump(mode="json"),
        "parameters": run.network.parameters,
        "batch_sequences": run.batch_sequences,
        "threads": run.threads,
    }
