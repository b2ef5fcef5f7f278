"""Rounds between two real engines: equal ones, one that computes NaN, encoders, one that is away."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.serve.engine.server import Server
from windlass.serve.engine.step import EngineSettings
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import ModelInfo
from windlass.spec.shape import BertShape, DecoderShape, Network
from windlass.supervisor.health.engine_client import EngineClient, NoAnswer
from windlass.supervisor.rollout.ab_rounds import Rounds, Side, side_of
from windlass.supervisor.rollout.eval_texts import OWN_TEXTS, EvalTexts, cut, find_eval_texts, read_held_out

LLAMA = DecoderShape(vocabulary=90, context=128, layers=2, width=32, heads=4, kv_heads=4, ffn_width=48)
BERT = BertShape(vocabulary=90, context=64, layers=2, width=32, heads=4, ffn_width=48)


def saved(folder: Path, shape: Network, *, broken: bool = False) -> Path:
    model = build(shape, seed=1)
    if broken:
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
    save_model(model, folder)
    return folder


@contextmanager
def side(folder: Path, name: str, shape: Network) -> Iterator[Side]:
    """A version behind a socket, in a thread."""
    scratch = Path(tempfile.mkdtemp(prefix="wl-"))
    family = "bert" if isinstance(shape, BertShape) else "llama"
    offered = ModelInfo(name, family, 1, shape.context, shape.vocabulary, 32)
    server = Server(
        load_engine(folder, LoadOptions(EngineSettings(slots=2), threads=1)), [offered], 2, scratch / "s"
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield side_of(name, folder, scratch / "s")
    finally:
        server.stop()
        thread.join()
        shutil.rmtree(scratch)


@contextmanager
def rounds(stable: Side, candidate: Side) -> Iterator[tuple[Rounds, EvalTexts]]:
    """Rounds to be stepped by hand, and what they are about."""
    made = Rounds(stable, candidate, "", None)
    with EngineClient(stable.socket) as asker:
        yield made, find_eval_texts("", None, stable.served, asker)


def test_a_version_equal_to_the_other_scores_and_answers_the_same(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", LLAMA)
    with (
        side(folder, "m@1", LLAMA) as old,
        side(folder, "m@2", LLAMA) as new,
        rounds(old, new) as (one, text),
    ):
        found = [one.step(text, number) for number in range(4)]
    assert (text.origin, len(text.texts)) == ("own", OWN_TEXTS)
    for each in found:
        assert each.candidate_bits == pytest.approx(each.stable_bits, rel=1e-3)
        assert (each.candidate.tokens, each.candidate.failed, each.fault) == (each.stable.tokens, False, "")


def test_scores_that_are_no_numbers_are_a_fault(tmp_path: Path) -> None:
    good, bad = saved(tmp_path / "good", LLAMA), saved(tmp_path / "bad", LLAMA, broken=True)
    with side(good, "m@1", LLAMA) as old, side(bad, "m@2", LLAMA) as new, rounds(old, new) as (one, text):
        found = one.step(text, 0)
    assert found.candidate.failed
    assert not found.stable.failed
    assert "NaN or infinity" in found.fault


def test_a_version_that_is_away_is_not_judged_by_that(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", LLAMA)
    gone = side_of("m@2", folder, tmp_path / "nowhere")
    with side(folder, "m@1", LLAMA) as old, rounds(old, gone) as (one, text), pytest.raises(NoAnswer):
        one.step(text, 0)


def test_encoders_are_compared_by_failures_and_time(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", BERT)
    with side(folder, "m@1", BERT) as old, side(folder, "m@2", BERT) as new, rounds(old, new) as (one, text):
        found = one.step(text, 0)
    assert text.origin == "vectors"
    assert not found.candidate.failed
    assert found.candidate.first_token_s > 0


def test_passages_fit_the_context_and_cover_the_text() -> None:
    text = "The windlass lifts the anchor, slowly. " * 40
    texts = cut(text, 64)
    assert "".join(each.text for each in texts) == text[: 16 * len(texts)]
    assert all(len(each.text) == 16 for each in texts)


def test_held_out_text_must_be_there_and_be_text(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_held_out(tmp_path / "nothing")
    (tmp_path / "short").write_text("too little")
    with pytest.raises(BadInput, match="holds 2 words"):
        read_held_out(tmp_path / "short")
