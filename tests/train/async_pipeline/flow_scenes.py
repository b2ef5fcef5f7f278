"""Runs that several processes do together, one after the other, in one process group.

    python flow_scenes.py RANK WORLD MEETING_FILE FOLDER

Input: FOLDER/<scene>/run.json. Output beside it, by rank: the weights at the end, and what each step told.
A scene named `stopped-...` is asked to stop after its third step, then goes on from its checkpoint.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from windlass.parallel.async_pipeline import AsyncPipeline
from windlass.train.async_pipeline.async_trainer import AsyncTrainer
from windlass.train.event_log import EventLog
from windlass.train.loop import load_run
from windlass.train.trainer import Trainer

STOPPED_AFTER = 3


def play(folder: Path, rank: int) -> None:
    told: list[dict[str, Any]] = []
    if folder.name.startswith("stopped"):
        _train(folder, rank, told, stop_after=STOPPED_AFTER)
        told.append({"resumed": True})
    trainer = _train(folder, rank, told)
    pipeline = trainer.strategy.pipeline
    if isinstance(pipeline, AsyncPipeline):
        told.append({"versions": pipeline.max_versions})
    (folder / f"told.{rank}.json").write_text(json.dumps(told))
    weights = {h.name: h.tensor.detach().clone() for h in trainer.strategy.params.holdings}
    save_file(weights, folder / f"weights.{rank}.safetensors")


def _train(folder: Path, rank: int, told: list[dict[str, Any]], stop_after: int | None = None) -> Trainer:
    run, record = load_run(folder), EventLog(folder, quiet=True, rank=rank)
    trainer = (AsyncTrainer if run.layout.asynchronous else Trainer)(run, folder, record)
    trainer.restore()
    calls = 0
    while trainer.step_number < run.steps:
        calls += 1
        facts = trainer.train_step(stop=stop_after is not None and rank == 0 and calls == stop_after)
        told.append({"step": trainer.step_number, **asdict(facts)})
        if facts.agreed and trainer.step_number % run.evaluate_every == 0:
            told[-1]["validation"] = trainer.evaluate(run.evaluate_sequences).loss
        if facts.stop:
            trainer.save()
            break
    record.close()
    return trainer


def main(rank: int, world: int, meeting: str, home: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    for folder in sorted(path for path in home.iterdir() if path.is_dir()):
        play(folder, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
