"""Compiling is a gain where it works, and nothing is lost where it does not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from windlass.spec.run import Run
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.loop import save_run, train

pytestmark = pytest.mark.slow


def losses(folder: Path, run: Run) -> list[float]:
    folder.mkdir()
    save_run(folder, run)
    torch._dynamo.reset()
    assert train(folder, lambda: False)
    return [e["loss"] for e in Journal(StoreDir(folder)).read() if e["event"] == "step"]


def warnings(folder: Path) -> list[str]:
    return [e["message"] for e in Journal(StoreDir(folder)).read() if e["event"] == "warning"]


def test_a_compiled_run_learns_the_same(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    run = make_run(train={"steps": 4, "evaluate_every": 4})
    plain = losses(tmp_path / "plain", run)
    compiled = losses(tmp_path / "compiled", run.model_copy(update={"compile": True}))
    assert warnings(tmp_path / "compiled") == []
    assert compiled == pytest.approx(plain, rel=1e-4)


def test_without_a_compiler_the_run_continues_plainly_and_says_so(
    tmp_path: Path, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    run = make_run(train={"steps": 3, "evaluate_every": 3}, model={"width": 48})
    plain = losses(tmp_path / "plain", run)
    fallen_back = losses(tmp_path / "fallen", run.model_copy(update={"compile": True}))
    assert any("torch.compile failed" in message for message in warnings(tmp_path / "fallen"))
    assert fallen_back == plain
