"""Our training speed beside Hugging Face's Trainer and beside the machine's matrix-product peak.

The same Llama shape, tokens, batch, optimizer and threads. Steps of ours and theirs alternate; a noisy
machine only ever slows a step down, so the best step of each side counts, as does the best product.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.corpus.build import build_corpus
from windlass.corpus.built import load_corpus
from windlass.models.huggingface import save_model
from windlass.plan.machine import MachineFacts, usable_cores
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.door import emit
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.job import Corpus, Job, Machine, Model, Tokenizer, Train
from windlass.spec.progress import silent
from windlass.spec.run import Run
from windlass.train.loop import save_run
from windlass.train.peak import peak_flops
from windlass.train.record import Record
from windlass.train.trainer import Trainer

PACKAGES = ("asyncio", "email", "http", "json", "unittest", "xml", "concurrent", "importlib", "logging")
WARM_STEPS = 2
MODEL = Model(layers=8, width=384, heads=6, kv_heads=6, ffn_width=1024, context=256)
BATCH_SEQUENCES = 8

Rounds = dict[str, list[float]]


def bench_train(repeats: int) -> dict[str, Any]:
    """Measure, and return the figures."""
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        raise BadInput("the peer, transformers, is not installed", hint="pip install 'windlass[bench]'")
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        run = bench_run(Path(scratch))
        rounds = {
            kind: _alternate(run, Path(scratch) / kind, kind, repeats) for kind in ("eager", "compiled")
        }
    return {"figures": _figures(run, rounds), "rounds": rounds, "run": _describe(run)}


def bench_run(home: Path) -> Run:
    """Build a small real corpus and a run of the shape to measure."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    sources = tuple(str(stdlib / name) for name in PACKAGES)
    job = Job(
        name="bench",
        corpus=Corpus(sources=sources, tokenizer=Tokenizer(vocabulary=8192)),
        model=MODEL,
        train=Train(steps=1000, batch_sequences=BATCH_SEQUENCES, micro_batch_sequences=BATCH_SEQUENCES),
        machine=Machine(compile="off"),
    )
    path = build_corpus(job.corpus, home, silent)
    corpus = load_corpus(path)
    facts = CorpusFacts(
        path=str(path),
        digest=corpus.digest,
        vocabulary=corpus.tokenizer.vocabulary,
        train_tokens=corpus.train.tokens,
        validation_tokens=corpus.validation.tokens,
    )
    machine = MachineFacts(cores=usable_cores(), memory_bytes=1 << 40, peak_flops=1e11, has_compiler=True)
    return plan_run(job, facts, machine)


def _alternate(run: Run, folder: Path, kind: str, repeats: int) -> Rounds:
    """Time steps of ours and theirs in turn; return the seconds of each, and the peak of each round."""
    folder.mkdir()
    save_run(folder, run)
    record = Record(folder, quiet=True)
    ours = Trainer(run.model_copy(update={"compile": kind == "compiled"}), folder, record)
    save_model(ours.model, folder / "model")
    more = " (compiling takes a minute)" if kind == "compiled" else ""
    emit({"event": "note", "message": f"{kind}: warming up{more}"})
    times: Rounds = {"ours": [], "theirs": [], "peak": []}
    with _peer(folder, kind, WARM_STEPS + repeats) as their_step:
        for number in range(1 - WARM_STEPS, repeats + 1):
            theirs, mine = next(their_step), ours.step().seconds
            if number > 0:
                times["ours"].append(mine)
                times["theirs"].append(theirs)
                times["peak"].append(peak_flops(ours.device, least_s=0.2))
            emit(
                {
                    "event": "progress",
                    "stage": kind,
                    "done": max(0, number),
                    "total": repeats,
                    "unit": "rounds",
                }
            )
    record.close()
    return times


@contextmanager
def _peer(folder: Path, kind: str, steps: int) -> Iterator[Iterator[float]]:
    """Start the peer in an environment free of our own settings; yield the seconds of its steps."""
    command = [sys.executable, "-m", "windlass.train.peer", str(folder), str(folder / "model")]
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


def _figures(run: Run, rounds: dict[str, Rounds]) -> dict[str, float]:
    flops = run.shape.training_flops_per_token() * run.tokens_per_step
    best = {f"{who}_{kind}": min(times[who]) for kind, times in rounds.items() for who in ("ours", "theirs")}
    peak = max(rounds["eager"]["peak"] + rounds["compiled"]["peak"])
    fastest = min(best["ours_eager"], best["ours_compiled"])
    return {
        "vs_hf_eager": best["theirs_eager"] / fastest,
        "vs_hf_compiled": best["theirs_compiled"] / fastest,
        "share_of_gemm_peak": flops / fastest / peak,
        "eager_vs_hf_eager": best["theirs_eager"] / best["ours_eager"],
        "compiled_vs_our_eager": best["ours_eager"] / best["ours_compiled"],
        **{f"{name}_tokens_per_s": run.tokens_per_step / seconds for name, seconds in best.items()},
        "gemm_peak_gflops": peak / 1e9,
    }


def _describe(run: Run) -> dict[str, Any]:
    return {
        "shape": run.shape.model_dump(mode="json"),
        "parameters": run.shape.parameters,
        "batch_sequences": run.batch_sequences,
        "threads": run.threads,
    }
