"""The native runner beside the torch models that its weights come from.

Legend: T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.models.language import LanguageModel
from windlass.models.weights import ModelWeights, load_weights
from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.native import missing_feature
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import BLOCK_TOKENS, Span
from windlass.spec.errors import BadInput
from windlass.spec.shape import DecoderShape

FAMILIES = ("llama", "tied", "wide heads", "gpt2")
SIZES = ("48 channels", "136 channels", "1024 wide")
"""Shapes that take other ways through the kernels."""
FEATURED = (
    "qwen2", "qwen3", "gemma2", "gemma3", "phi", "olmo2", "smollm3", "stablelm", "granite", "starcoder2",
    "gpt_neox", "falcon", "sinks", "relu", "relu2",
)  # fmt: skip
"""Shapes with features that Llama and GPT-2 lack."""
SPARSE = ("mixtral", "qwen2_moe", "gpt_oss")
"""With experts: a rounding may send a token to other ones, so that scores of rounded weights are not near."""
TINY: dict[str, Any] = {"vocabulary": 9, "context": 16, "layers": 1, "width": 16, "heads": 4, "ffn_width": 8}
PRECISIONS = ("float32", "bfloat16", "int8", "int4")
TOKENS = np.random.default_rng(5).integers(0, 101, 200).tolist()
TABLES = np.random.default_rng(6).permutation(64)[:52].astype(np.int32).reshape(4, 13)
"""The blocks of four sequences, in no order."""

Models = Callable[[str], LanguageModel]
Runners = Callable[..., NativeRunner]


@torch.inference_mode()
def states(model: LanguageModel, tokens: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the scores after every token, and the final states."""
    x_1TD = model(torch.tensor([tokens]))
    return model.logits(x_1TD)[0].numpy(), x_1TD[0].numpy()


def copied(model: LanguageModel) -> LanguageModel:
    copy = build(model.shape)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def scores(runner: NativeRunner, tokens: list[int], adapter: int = -1) -> NDArray[np.float32]:
    span = Span(1, 0, tokens, outs=len(tokens), adapter=adapter)
    return runner.run([span], TABLES).logits_BV.copy()


def distance(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", [*FAMILIES, *SIZES, *FEATURED, *SPARSE])
def test_scores_and_states_are_those_of_the_torch_model(name: str, model: Models, runner: Runners) -> None:
    got = runner(name).run([Span(2, 0, TOKENS, outs=200)], TABLES, hidden=True)
    logits_TV, hidden_TD = states(model(name), TOKENS)
    bound = 1e-4 if name == "1024 wide" else 1e-5  # sums of more numbers are rounded more often
    assert got.hidden_TD is not None
    assert distance(got.logits_BV, logits_TV) < bound
    assert distance(got.hidden_TD, hidden_TD) < bound


@pytest.mark.parametrize("name", [*FAMILIES, *FEATURED])
def test_keys_in_half_the_memory_give_nearly_the_same(name: str, model: Models, runner: Runners) -> None:
    logits_TV, _ = states(model(name), TOKENS)
    assert distance(scores(runner(name, half=True), TOKENS), logits_TV) < 3e-3


@pytest.mark.parametrize("name", [*FAMILIES, *FEATURED])
def test_bfloat16_weights_are_the_torch_models_rounded(name: str, model: Models, runner: Runners) -> None:
    rounded = copied(model(name))
    head = "embedding.weight" if rounded.shape.tied else "head.weight"
    with torch.no_grad():
        for key, weight in rounded.named_parameters():
            if key == head or (key.startswith("layers.") and weight.ndim == 2):
                weight.copy_(weight.bfloat16())
    logits_TV, _ = states(rounded, TOKENS)
    assert distance(scores(runner(name, precision="bfloat16"), TOKENS), logits_TV) < 1e-5


@pytest.mark.parametrize(("precision", "bound"), [("int8", 0.15), ("int4", 0.6)])
@pytest.mark.parametrize("name", [*FAMILIES, *FEATURED])
def test_integer_weights_give_scores_that_are_close(
    name: str, precision: str, bound: float, model: Models, runner: Runners
) -> None:
    logits_TV, _ = states(model(name), TOKENS)
    lost_TV = scores(runner(name, precision=precision), TOKENS) - logits_TV
    assert 0 < np.linalg.norm(lost_TV) / np.linalg.norm(logits_TV) < bound


@pytest.mark.parametrize("half", [False, True], ids=["float32 keys", "float16 keys"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_token_gets_the_same_bits_in_any_chunk_and_company(
    name: str, precision: str, half: bool, runner: Runners
) -> None:
    expect_the_same_bits(runner(name, precision=precision, half=half))


@pytest.mark.parametrize("name", [*SIZES, *FEATURED, *SPARSE])
def test_a_token_gets_the_same_bits_in_models_of_other_sizes_and_features(name: str, runner: Runners) -> None:
    expect_the_same_bits(runner(name, half=True))


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [*FEATURED, *SPARSE])
def test_a_token_gets_the_same_bits_whatever_the_features_and_the_precision(
    name: str, precision: str, runner: Runners
) -> None:
    expect_the_same_bits(runner(name, precision=precision))


def expect_the_same_bits(one: NativeRunner) -> None:
    """Compute tokens at one go, one by one beside others, and in chunks beside others."""
    wanted = scores(one, TOKENS)
    one.run([Span(0, 0, TOKENS[:7]), Span(2, 0, TOKENS[:50])], TABLES)
    for number in range(10):
        got = one.run(
            [Span(2, 50 + number, [TOKENS[50 + number]]), Span(0, 7 + number, [TOKENS[7 + number]])], TABLES
        )
        assert np.array_equal(got.logits_BV, wanted[[50 + number, 7 + number]])
    mixed = [Span(0, 17, TOKENS[17:20], outs=3), Span(2, 60, TOKENS[60:150], outs=90)]
    assert np.array_equal(one.run(mixed, TABLES).logits_BV, wanted[[*range(17, 20), *range(60, 150)]])


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_threads_do_not_change_a_bit(precision: str, threads: int, runner: Runners) -> None:
    several = runner(precision=precision, threads=threads)
    assert np.array_equal(scores(several, TOKENS), scores(runner(precision=precision), TOKENS))


def test_only_the_scores_that_are_wanted_come_back(runner: Runners) -> None:
    spans = [Span(0, 0, TOKENS[:5], outs=0), Span(1, 0, TOKENS[:9], outs=2), Span(2, 0, TOKENS[:3])]
    computed = runner().run(spans, TABLES)
    assert computed.logits_BV.shape == (3, 101)
    assert computed.hidden_TD is None
    assert np.array_equal(computed.logits_BV, scores(runner(), TOKENS[:9])[[7, 8, 2]])


def adapter_of(shape: DecoderShape, names: list[str], rank: int = 3) -> Adapter:
    random = np.random.default_rng(8)
    sizes = shape.weight_sizes()
    matrices = {
        name: (
            random.standard_normal((rank, sizes[name][1])).astype(np.float32),
            random.standard_normal((sizes[name][0], rank)).astype(np.float32),
        )
        for name in names
    }
    return Adapter("poet", rank, 0.25, matrices)


def merged(model: LanguageModel, adapter: Adapter) -> LanguageModel:
    copy = copied(model)
    weights = dict(copy.named_parameters())
    with torch.no_grad():
        for name, (down, up) in adapter.matrices.items():
            weights[name].add_(torch.from_numpy(adapter.scale * up @ down))
    return copy


@pytest.mark.parametrize("name", [*FAMILIES, *FEATURED])
def test_an_adapter_computes_what_the_merged_model_does(
    name: str, shared: ctypes.CDLL, model: Models, weights: Callable[[str], ModelWeights]
) -> None:
    plain = model(name)
    names = [key for key, size in plain.shape.weight_sizes().items() if "layers." in key and len(size) == 2]
    adapter = adapter_of(plain.shape, names)
    one = NativeRunner(shared, weights(name), blocks=64, threads=1)
    before = scores(one, TOKENS)
    number = one.take_adapter(adapter)
    wanted, _ = states(merged(plain, adapter), TOKENS)
    assert distance(scores(one, TOKENS, number), wanted) < 1e-4
    assert np.array_equal(scores(one, TOKENS), before)


def test_adapters_and_the_plain_model_share_a_step(
    shared: ctypes.CDLL, model: Models, weights: Callable[[str], ModelWeights]
) -> None:
    one = NativeRunner(shared, weights("llama"), blocks=64, threads=1)
    shape = model("llama").shape
    numbers = [
        one.take_adapter(adapter_of(shape, [f"layers.{layer}.ffn.up.weight"], rank))
        for layer, rank in ((0, 2), (1, 9))
    ]
    alone = [scores(one, TOKENS[:20], number)[-1] for number in (-1, *numbers)]
    spans = [Span(slot, 0, TOKENS[:20], adapter=number) for slot, number in enumerate((-1, *numbers))]
    assert np.array_equal(one.run(spans, TABLES).logits_BV, np.array(alone))
    assert not np.array_equal(alone[0], alone[1])


def test_an_adapter_of_too_high_a_rank_is_refused(runner: Runners, model: Models) -> None:
    with pytest.raises(BadInput, match="rank 257 is above 256"):
        runner().take_adapter(adapter_of(model("llama").shape, [], 257))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", ["gemma3", "qwen2_moe"])
def test_threads_do_not_change_a_bit_of_other_features(name: str, threads: int, runner: Runners) -> None:
    several = runner(name, threads=threads, precision="int8")
    assert np.array_equal(scores(several, TOKENS), scores(runner(name, precision="int8"), TOKENS))


@pytest.mark.parametrize(("stored", "asked"), [("int4", "int8"), ("int8", "int4")])
def test_integers_cannot_become_others(
    stored: str, asked: str, shared: ctypes.CDLL, weights: Callable[[str], ModelWeights]
) -> None:
    class Stored:
        """What a compressed directory says of itself."""

        shape, precision = weights("llama").shape, stored

    with pytest.raises(BadInput, match=f"stored as {stored} and cannot become {asked}"):
        NativeRunner(shared, Stored(), blocks=64, threads=1, precision=asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "shape"), [
    ("norm_placement", DecoderShape(family="phi", **TINY, norm_placement="both", shared_norm=False)),
    ("experts", DecoderShape(family="phi", **TINY, experts=2, experts_per_token=1, expert_width=8)),
    (None, DecoderShape(family="gpt_oss", **TINY, experts=2, experts_per_token=1, expert_width=8)),
])  # fmt: skip
def test_a_feature_that_is_not_computed_has_a_name(field: str | None, shape: DecoderShape) -> None:
    assert missing_feature(shape) == field


def with_a_damaged_token(
    name: str, shared: ctypes.CDLL, model: Models, folder: Path, token: int = 7
) -> NativeRunner:
    broken = copied(model(name))
    with torch.no_grad():
        broken.embedding.weight[token] = torch.nan  # type: ignore[union-attr, operator]
    save_model(broken, folder / "broken")
    return NativeRunner(shared, load_weights(folder / "broken"), blocks=64, threads=1)


def test_a_damaged_token_spoils_nothing_that_no_window_shows_it_to(
    shared: ctypes.CDLL, model: Models, tmp_path: Path
) -> None:
    """Each of two layers with a window of 16 passes it on to the 15 tokens after."""
    one = with_a_damaged_token("starcoder2", shared, model, tmp_path)
    clean = [token if token != 7 else 8 for token in TOKENS[:100]]
    wanted = scores(one, clean)
    for place in (0, 9, 15, 16, 20):
        got = scores(one, [*clean[:place], 7, *clean[place + 1 :]])
        assert np.isnan(got[place : place + 31]).all()
        assert np.array_equal(got[:place], wanted[:place])
        assert np.array_equal(got[place + 31 :], wanted[place + 31 :])


def test_a_damaged_token_spoils_nothing_before_it(shared: ctypes.CDLL, model: Models, tmp_path: Path) -> None:
    """What comes before a token in its sequence may be shared with others, or be the token to answer with."""
    one = with_a_damaged_token("llama", shared, model, tmp_path)
    clean = [token for token in TOKENS if token != 7][:BLOCK_TOKENS]
    wanted = scores(one, clean)
    for place in range(1, BLOCK_TOKENS):
        got = scores(one, [*clean[:place], 7, *clean[place + 1 :]])
        assert np.array_equal(got[:place], wanted[:place])
