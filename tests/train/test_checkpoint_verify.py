"""A checkpoint is looked at by a process that shares nothing with its writer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from windlass.spec.run import Run
from windlass.store.journal import Journal
from windlass.store.manifest import MANIFEST, DirectoryWriter
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import committed
from windlass.train.checkpoint.checkpointer import note_sent, settle_store
from windlass.train.checkpoint.shard import FORMAT
from windlass.train.checkpoint.verifier import CheckpointVerifier
from windlass.train.checkpoint_verify import verify_checkpoint
from windlass.train.loop import load_run, save_run, train

pytestmark = pytest.mark.slow


@pytest.fixture(params=["llama", "bert"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, make_run: Callable[..., Run]) -> Path:
    """A finished run with three checkpoints."""
    masked = request.param == "bert"
    run = make_run(model={"family": request.param})
    assert (run.objective == "masked") == masked
    folder = tmp_path / "tiny" / "1"
    folder.mkdir(parents=True)
    save_run(folder, run)
    assert train(folder, lambda: False)
    return folder


def test_what_a_run_wrote_has_the_loss_that_it_said(folder: Path) -> None:
    run = load_run(folder)
    for step in (4, 8):
        found = verify_checkpoint(folder, run, "local", step)
        assert found.ok, found.message
        assert f"step {step + 1} recorded" in found.message
        assert found.loss == pytest.approx(found.expected, rel=1e-5)
    assert verify_checkpoint(folder, run, "local").step == 12


def test_bytes_that_changed_are_found_by_digest(folder: Path) -> None:
    part = next(committed(folder / "checkpoints")[-1].glob("part-*"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    found = verify_checkpoint(folder, load_run(folder), "local")
    assert not found.ok
    assert part.name in found.message


def test_weights_that_are_whole_but_wrong_are_found_by_their_loss(folder: Path) -> None:
    """As a writer with a mistake would save them: the manifest is right, the numbers are not."""
    path = folder / "checkpoints" / "step-00000008"
    part = next(path.glob("part-*"))
    tensors, metadata = load_file(part), header_of(part)
    weight = next(name for name in sorted(tensors) if tensors[name].ndim == 2 and "embed" in name)
    tensors[weight] = torch.flip(tensors[weight], [0])
    save_file(tensors, part, metadata)
    writer = DirectoryWriter(StoreDir(path))
    for name in json.loads((folder / "checkpoints" / "step-00000004" / MANIFEST).read_bytes())["files"]:
        writer.adopt(name)
    writer.commit()
    found = verify_checkpoint(folder, load_run(folder), "local", 8)
    assert not found.ok
    assert found.loss is not None
    assert found.expected is not None


def header_of(part: Path) -> dict[str, str]:
    data = part.read_bytes()
    size = int.from_bytes(data[:8], "little")
    told: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    assert told["format"] == FORMAT
    return told


def test_copies_in_a_store_are_looked_at_there(folder: Path, tmp_path: Path) -> None:
    run = load_run(folder)
    absent = verify_checkpoint(folder, run, "store")
    assert "no checkpoint was uploaded" in absent.message
    assert not absent.there
    mirror = Mirror(StoreDir(settle_store(folder, str(tmp_path / "store"))))
    mirror.push(folder / "checkpoints" / "step-00000008")
    note_sent(folder, "step-00000008")
    shutil.rmtree(folder / "checkpoints")
    found = verify_checkpoint(folder, run, "store")
    assert (found.ok, found.step) == (True, 8)
    assert not list(folder.glob("verify-*"))
    next(Path(mirror.place.root).glob("objects/*")).write_bytes(b"rotten")
    assert not verify_checkpoint(folder, run, "store").ok


def test_a_schedule_has_every_so_many_looked_at(folder: Path) -> None:
    journal = Journal(StoreDir(folder))
    checks = CheckpointVerifier(folder, 2, lambda event, **facts: journal.append({"event": event, **facts}))
    for step in (4, 8):
        checks.offer(step)
    assert checks.in_progress == ["step-00000008"]
    wait_for(checks)
    verified: list[dict[str, Any]] = [r for r in journal.read() if r["event"] == "verified"]
    assert [(r["step"], r["ok"]) for r in verified] == [(8, True)], verified


def wait_for(checks: CheckpointVerifier) -> None:
    assert checks._thread is not None
    checks._thread.join(120)
