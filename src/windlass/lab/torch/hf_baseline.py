"""Hugging Face's Trainer with its best settings, one step at a time: the baseline of `windlass bench train`.

A separate process, in the environment that a user of Trainer would have. It takes a step for every line on
its standard input and prints how long the step took.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from windlass.corpus.batches import read_batch
from windlass.corpus.corpus_dir import load_corpus
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.run import Run
from windlass.train.loop import load_run


class StepTurns(transformers.TrainerCallback):
    """Waits for its turn before each step, and times it."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        sys.stdin.readline()
        self.begin = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        emit({"seconds": time.perf_counter() - self.begin})


def main(argv: list[str]) -> None:
    args = _parse(argv)
    run = load_run(args.folder)
    torch.set_num_threads(run.threads)
    torch.set_flush_denormal(True)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, attn_implementation="sdpa")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    trainer = transformers.Trainer(
        model=model, args=arguments_of(run, args), train_dataset=_dataset(run), callbacks=[StepTurns()]
    )
    trainer.train()


def arguments_of(run: Run, args: argparse.Namespace) -> transformers.TrainingArguments:
    """The same optimizer, clipping and batch as ours; without logging, saving and progress bars."""
    return transformers.TrainingArguments(
        output_dir=str(args.folder / "peer"),
        per_device_train_batch_size=run.batch_sequences,
        max_steps=args.steps,
        learning_rate=run.learning_rate,
        lr_scheduler_type="cosine",
        max_grad_norm=run.job.train.clip,
        weight_decay=run.job.train.weight_decay,
        optim="adamw_torch_fused",
        torch_compile=args.compiled,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
    )


def _dataset(run: Run) -> list[dict[str, torch.Tensor]]:
    """The same sequences that our trainer uses."""
    part = load_corpus(Path(run.corpus)).train
    rows = read_batch(part, range(64 * run.batch_sequences), context=run.network.context, seed=run.job.seed)
    return [{"input_ids": torch.from_numpy(row), "labels": torch.from_numpy(row)} for row in rows[:, :-1]]


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog="python -m windlass.lab.torch.hf_baseline")
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--compiled", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
