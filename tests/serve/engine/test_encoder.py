"""The engine of bert: vectors and no text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from windlass.models.build import build
from windlass.models.language import LanguageModel
from windlass.serve.engine.encoder import TOKENS_PER_STEP, EncoderEngine, Pooling, pooling_in, vectors_of
from windlass.serve.engine.engine_api import Reply
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import Cancel, Embed, EmbeddingVectors, Failed, Generate, Tokens

INPUTS = [[1, 2, 3], [4], [5] * 20, [6, 7]]

Models = Callable[[str], LanguageModel]


def drain(encoder: EncoderEngine) -> list[Reply]:
    replies: list[Reply] = []
    while not encoder.is_idle:
        replies += encoder.step()
    return replies


def test_vectors_are_the_normalised_means_of_the_inputs_own_states(model: Models) -> None:
    encoder = EncoderEngine(model("bert"))
    encoder.add("me", Embed("it", INPUTS))
    ((owner, answer),) = drain(encoder)
    assert owner == "me"
    assert isinstance(answer, EmbeddingVectors)
    for vector, tokens in zip(answer.vectors, INPUTS, strict=True):
        with torch.inference_mode():
            mean = model("bert")(torch.tensor([tokens]))[0].mean(dim=0)
        assert vector == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_padding_changes_no_way_of_pooling(pooling: Pooling, model: Models) -> None:
    with torch.inference_mode():
        together = vectors_of(model("bert"), INPUTS, pooling)
        alone = [vectors_of(model("bert"), [tokens], pooling)[0] for tokens in INPUTS]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_directory_says_how_it_pools(tmp_path: Path) -> None:
    assert pooling_in(tmp_path) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    config = tmp_path / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    assert pooling_in(tmp_path) == "cls"
    config.write_text(json.dumps({"pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(BadInput, match="pools by pooling_mode_weightedmean_tokens"):
        pooling_in(tmp_path)


def test_a_part_that_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    parts = [
        {"type": "sentence_transformers.models.Transformer"},
        {"type": "sentence_transformers.models.Dense"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(parts))
    with pytest.raises(BadInput, match="has a part 'Dense'"):
        pooling_in(tmp_path)


def test_a_large_request_takes_several_steps_and_lets_others_in_between(model: Models) -> None:
    encoder = EncoderEngine(model("bert"))
    encoder.add("me", Embed("large", [[1] * 200] * (3 * TOKENS_PER_STEP // 200)))
    encoder.add("you", Embed("small", [[2]]))
    assert [message.id for _, message in drain(encoder)] == ["small", "large"]
    assert encoder.steps > 3


def test_it_does_not_generate(model: Models) -> None:
    encoder = EncoderEngine(model("bert"))
    encoder.add("me", Generate("it", [1], 1))
    ((_, failed),) = drain(encoder)
    assert isinstance(failed, Failed)
    assert failed.code == "not_generative"


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([], "bad_tokens"),
        ([[1], []], "bad_tokens"),
        ([[999]], "bad_tokens"),
        ([[1] * 201], "context_exceeded"),
    ],
)
def test_wrong_inputs_are_refused(inputs: list[list[int]], code: str, model: Models) -> None:
    encoder = EncoderEngine(model("bert"))
    encoder.add("me", Embed("it", inputs))
    ((_, failed),) = drain(encoder)
    assert isinstance(failed, Failed)
    assert failed.code == code


def test_requests_can_be_cancelled_and_owners_vanish(model: Models) -> None:
    encoder = EncoderEngine(model("bert"))
    for owner, id_ in (("me", "kept"), ("me", "cancelled"), ("gone", "kept")):
        encoder.add(owner, Embed(id_, [[1]]))
    encoder.add("me", Cancel("cancelled"))
    encoder.forget("gone")
    replies = drain(encoder)
    assert replies[0] == ("me", Tokens("cancelled", finish="cancelled"))
    assert [(owner, message.id) for owner, message in replies[1:]] == [("me", "kept")]


def test_an_id_under_way_cannot_be_used_again(model: Models) -> None:
    encoder = EncoderEngine(model("bert"))
    encoder.add("me", Embed("it", [[1]]))
    encoder.add("me", Embed("it", [[2]]))
    assert sorted(type(message).__name__ for _, message in drain(encoder)) == ["EmbeddingVectors", "Failed"]


def test_a_damaged_model_says_so(model: Models) -> None:
    broken = build(model("bert").shape, seed=1)
    with torch.no_grad():
        broken.embedding.weight[7] = math.nan  # type: ignore[union-attr, operator]
    encoder = EncoderEngine(broken)
    encoder.add("me", Embed("bad", [[1], [7]]))
    encoder.add("me", Embed("good", [[1]]))
    (_, bad), (_, good) = drain(encoder)
    assert isinstance(bad, Failed)
    assert bad.code == "not_a_number"
    assert isinstance(good, EmbeddingVectors)
