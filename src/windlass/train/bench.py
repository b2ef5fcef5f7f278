"""Our training speed beside Hugging Face's Trainer and beside the machine's matrix-product peak.

The same Llama shape, the same tokens, the same threads, in one process. Steps of both alternate, so that
a noisy machine slows both alike; every ratio is taken round by round and the median counts.
"""

from __future__ import annotations

import importlib.util
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from windlass.corpus.batches import read_batch
from windlass.corpus.build import build_corpus
from windlass.corpus.built import load_corpus
from windlass.models.huggingface import save_model
from windlass.plan.machine import MachineFacts, usable_cores
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.door import emit
from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus, Job, Machine, Model, Tokenizer, Train
from windlass.spec.progress import silent
from windlass.spec.run import Run
from windlass.store.manifest import DirectoryWriter
from windlass.store.place import Place
from windlass.train.peak import peak_flops
from windlass.train.record import Record
from windlass.train.trainer import Trainer

PACKAGES = ("asyncio", "email", "http", "json", "unittest", "xml", "concurrent", "importlib", "logging")
WARM_STEPS = 2
MODEL = Model(layers=8, width=384, heads=6, kv_heads=6, ffn_width=1024, context=256)
BATCH_SEQUENCES = 8


def bench_train(repeats: int) -> dict[str, Any]:
    """Measure, and return the figures."""
    if importlib.util.find_spec("transformers") is None:
        raise BadInput("the peer, transformers, is not installed", hint="pip install 'windlass[bench]'")
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        run = bench_run(Path(scratch))
        rounds = {
            kind: _alternate(run, Path(scratch), compiled=kind == "compiled", repeats=repeats)
            for kind in ("eager", "compiled")
        }
    return {"figures": _figures(run, rounds), "rounds": rounds, "run": _describe(run)}


def bench_run(home: Path) -> Run:
    """Build a small real corpus and a run of the shape to measure."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    job = Job(
        name="bench",
        corpus=Corpus(
            sources=tuple(str(stdlib / name) for name in PACKAGES), tokenizer=Tokenizer(vocabulary=8192)
        ),
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


def _alternate(run: Run, scratch: Path, *, compiled: bool, repeats: int) -> dict[str, list[float]]:
    """Time steps of ours and theirs in turn; return seconds per step, and the peak of each round."""
    kind = "compiled" if compiled else "eager"
    folder = scratch / kind
    folder.mkdir()
    record = Record(folder, quiet=True)
    ours = Trainer(run.model_copy(update={"compile": compiled}), folder, record)
    times: dict[str, list[float]] = {"ours": [], "theirs": [], "peak": []}
    emit(
        {
            "event": "note",
            "message": f"{kind}: warming up" + (" (compiling takes a minute)" if compiled else ""),
        }
    )

    def after_their_step(seconds: float) -> None:
        mine = ours.step().seconds
        number = len(times["ours"]) + 1 if warm[0] >= WARM_STEPS else 0
        if number:
            times["ours"].append(mine)
            times["theirs"].append(seconds)
            times["peak"].append(peak_flops(ours.device, least_s=0.2))
        warm[0] += 1
        emit({"event": "progress", "stage": kind, "done": number, "total": repeats, "unit": "rounds"})

    warm = [0]
    _run_trainer(ours, scratch / f"hf-{kind}", compiled, WARM_STEPS + repeats, after_their_step)
    record.close()
    return times


def _run_trainer(
    ours: Trainer, folder: Path, compiled: bool, steps: int, after_step: Callable[[float], None]
) -> None:
    """Train the same model with Hugging Face's Trainer in its best settings, calling us after each step."""
    import transformers

    class Turns(transformers.TrainerCallback):
        """Times each step of theirs, then lets us take ours."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            after_step(time.perf_counter() - self.begin)

    writer = DirectoryWriter(Place(folder / "model"))
    save_model(ours.model, writer)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="sdpa")
    run = ours.run
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=run.batch_sequences,
        max_steps=steps,
        learning_rate=run.learning_rate,
        lr_scheduler_type="cosine",
        max_grad_norm=run.job.train.clip,
        weight_decay=run.job.train.weight_decay,
        optim="adamw_torch_fused",
        torch_compile=compiled,
        use_cpu=ours.device.type == "cpu",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
    )
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.Trainer(
        model=model, args=arguments, train_dataset=_dataset(ours), callbacks=[Turns()]
    ).train()


def _dataset(ours: Trainer) -> list[dict[str, torch.Tensor]]:
    """The sequences that we train on ourselves."""
    run = ours.run
    tokens = read_batch(
        ours.corpus.train, range(64 * run.batch_sequences), context=run.shape.context, seed=run.job.seed
    )[:, :-1]
    return [{"input_ids": torch.from_numpy(row), "labels": torch.from_numpy(row)} for row in tokens]


def _figures(run: Run, rounds: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    flops = run.shape.training_flops_per_token() * run.tokens_per_step
    eager, compiled = rounds["eager"], rounds["compiled"]
    median = {
        f"{who}_{kind}": statistics.median(times[who])
        for kind, times in rounds.items()
        for who in ("ours", "theirs")
    }
    return {
        "vs_hf_eager": _ratio(eager["theirs"], eager["ours"]),
        "vs_hf_compiled": _ratio(compiled["theirs"], compiled["ours"]),
        "share_of_gemm_peak": _share(flops, compiled),
        "share_of_gemm_peak_eager": _share(flops, eager),
        "compiled_vs_eager": median["ours_eager"] / median["ours_compiled"],
        **{f"{name}_tokens_per_s": run.tokens_per_step / seconds for name, seconds in median.items()},
        "gemm_peak_gflops": statistics.median(eager["peak"] + compiled["peak"]) / 1e9,
    }


def _ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def _share(flops: float, times: dict[str, list[float]]) -> float:
    return statistics.median(flops / s / p for s, p in zip(times["ours"], times["peak"], strict=True))


def _describe(run: Run) -> dict[str, Any]:
    return {
        "shape": run.shape.model_dump(mode="json"),
        "parameters": run.shape.parameters,
        "batch_sequences": run.batch_sequences,
        "threads": run.threads,
    }
