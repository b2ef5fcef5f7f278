"""Tiny models in all families, and engines over them.

Weights are spread widely, so that scores lie far apart and answers wander through the vocabulary.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from windlass.lab.bench.bench_models import write_hidden
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.models.language import LanguageModel
from windlass.models.recurrent_state import Ids, Scores, States, Statistical, load_statistical
from windlass.models.weights import Float, ModelWeights, load_weights
from windlass.serve.engine.native import library
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import Runner
from windlass.serve.engine.speculative import StepCosts
from windlass.serve.engine.state_runner import StateRunner
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.protocol.wire import Tokens
from windlass.spec.shape import (
    BertShape,
    DecoderShape,
    HmmShape,
    MlpShape,
    Network,
    NgramShape,
    RopeScaling,
)

BLOCKS = 64
STRETCHED = RopeScaling(factor=4.0, original_context=32)
PLAIN: dict[str, Any] = {"vocabulary": 101, "context": 200, "layers": 2}
SMALL: dict[str, Any] = {**PLAIN, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 44}
SHAPES: dict[str, Network] = {
    "llama": DecoderShape(**PLAIN, width=48, heads=6, kv_heads=2, ffn_width=72),
    "tied": DecoderShape(
        **PLAIN, width=40, heads=4, kv_heads=4, ffn_width=61, tied=True, rope_scaling=STRETCHED
    ),
    "wide heads": DecoderShape(**PLAIN, width=36, heads=3, kv_heads=1, explicit_head_width=22, ffn_width=40),
    "48 channels": DecoderShape(**PLAIN, width=32, heads=2, kv_heads=1, explicit_head_width=48, ffn_width=40),
    "136 channels": DecoderShape(
        **PLAIN, width=32, heads=1, kv_heads=1, explicit_head_width=136, ffn_width=40
    ),
    "1024 wide": DecoderShape(
        **PLAIN, width=1024, heads=2, kv_heads=2, explicit_head_width=8, ffn_width=1024
    ),
    "gpt2": DecoderShape(family="gpt2", **PLAIN, width=36, heads=3, ffn_width=50),
    "qwen2": DecoderShape(family="qwen2", **SMALL, window=37, window_layers=(1,)),
    "qwen3": DecoderShape(family="qwen3", **SMALL, explicit_head_width=12),
    "gemma2": DecoderShape(
        family="gemma2", **SMALL, window=5, window_layers=(0,), attention_scale=0.2, attention_softcap=4.0,
        logit_softcap=9.0,
    ),
    "gemma3": DecoderShape(
        family="gemma3", **SMALL, window=21, window_layers=(0,), attention_scale=0.2, rope_theta=50000.0,
        rope_scaling=RopeScaling(kind="linear", factor=2.0, original_context=200),
    ),
    "phi": DecoderShape(family="phi", **SMALL),
    "olmo2": DecoderShape(family="olmo2", **SMALL),
    "smollm3": DecoderShape(family="smollm3", **SMALL, unrotated_layers=(1,)),
    "stablelm": DecoderShape(family="stablelm", **SMALL, qkv_bias=True, rotary_share=0.5),
    "granite": DecoderShape(
        family="granite", **SMALL, embedding_scale=6.0, residual_scale=0.3, attention_scale=0.2,
        logit_scale=0.25,
    ),
    "starcoder2": DecoderShape(family="starcoder2", **SMALL, window=16),
    "gpt_neox": DecoderShape(family="gpt_neox", **SMALL | {"kv_heads": 4}, rotary_share=0.5),
    "falcon": DecoderShape(family="falcon", **SMALL, shared_norm=True),
    "sinks": DecoderShape(
        **SMALL, sinks=True, window=40, window_layers=(1,), activation="clamped_swiglu", ffn_bias=True,
        norm="layer",
    ),
    "relu": DecoderShape(**SMALL, activation="relu", gated=False, attention_softcap=4.0, sinks=True),
    "relu2": DecoderShape(**SMALL, activation="relu2", gated=False),
    "bert": BertShape(**PLAIN, width=36, heads=3, ffn_width=50),
    "letters": DecoderShape(vocabulary=6, context=64, layers=1, width=16, heads=2, kv_heads=1, ffn_width=24),
    "mixtral": DecoderShape(family="mixtral", **SMALL, experts=5, experts_per_token=2, expert_width=44),
    "qwen2_moe": DecoderShape(
        family="qwen2_moe", **SMALL, experts=6, experts_per_token=3, expert_width=20, shared_width=50,
        shared_gate=True, dense_layers=(1,),
    ),
    "gpt_oss": DecoderShape(
        family="gpt_oss", **SMALL, experts=5, experts_per_token=2, expert_width=44, window=40,
        window_layers=(0,),
    ),
}  # fmt: skip
UNSTORED = ("sinks", "relu", "relu2")
"""Shapes that no config.json can say."""
STATISTICAL = ("fading", "ngram", "hmm", "mlp")
VOCABULARY = 101
MORE_IS_CHEAPER = StepCosts({1: 1.0, 1000: 0.5})
"""Costs of a machine on which drafts always pay."""


class Fading:
    """A Statistical whose memory of each token halves with every token after it."""

    state_size, state_dtype = 8, np.dtype(np.float32)

    def __init__(self, seed: int = 5) -> None:
        chance = np.random.default_rng(seed)
        self.shape = HmmShape(vocabulary=101, context=200, states=self.state_size)
        self._token_VS = chance.normal(size=(101, 8)).astype(np.float32)
        self._head_SV = (3 * chance.normal(size=(8, 101))).astype(np.float32)

    def first(self) -> States:
        return np.zeros(self.state_size, np.float32)

    def read(self, state_S: States, tokens_T: Ids) -> States:
        found = []
        for token in tokens_T:
            state_S = self.step(state_S[None], np.array([token]))[0]
            found.append(state_S)
        return np.stack(found)

    def step(self, states_BS: States, tokens_B: Ids) -> States:
        return states_BS * np.float32(0.5) + self._token_VS[tokens_B]

    def scores(self, states_BS: States) -> Scores:
        logits_BV = np.zeros((len(states_BS), 101), np.float32)
        for column_B, row_V in zip(states_BS.T, self._head_SV, strict=True):
            logits_BV += column_B[:, None] * row_V
        rows = [logits_V - np.log(np.exp(logits_V.astype(np.float64)).sum()) for logits_V in logits_BV]
        return np.array(rows, np.float32).reshape(logits_BV.shape)

    def logprobs(self, inputs_BT: Ids, targets_BT: Ids) -> NDArray[np.float64]:
        rows = [
            self.scores(self.read(self.first(), inputs_T))[np.arange(len(inputs_T)), targets_T]
            for inputs_T, targets_T in zip(inputs_BT, targets_BT, strict=True)
        ]
        return np.array(rows, np.float64)

    def vectors(self, states_BS: States) -> NDArray[np.float32]:
        return states_BS.astype(np.float32)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared() -> ctypes.CDLL:
    found = library()
    if found is None:
        pytest.skip("the native library is not built here, or this processor cannot run it")
    return found


@pytest.fixture(scope="session")
def model() -> Callable[[str], LanguageModel]:
    """Return a torch model by the name of its shape."""

    @functools.cache
    def made(name: str) -> LanguageModel:
        built = build(SHAPES[name], seed=3)
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.25)
        return built.eval()

    return made


@pytest.fixture(scope="session")
def directory(
    model: Callable[[str], LanguageModel], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return where a model is stored."""

    @functools.cache
    def stored(name: str) -> Path:
        path = tmp_path_factory.mktemp("model") / name.replace(" ", "-")
        save_model(model(name), path)
        return path

    return stored


class HeldWeights(ModelWeights):
    """The weights of a model in memory, for features that no config.json says together."""

    precision = "float32"

    def __init__(self, model: LanguageModel) -> None:
        self.shape, self.sizes = model.shape, model.shape.weight_sizes()
        self._model = model

    def get(self, name: str) -> Float:
        return Float(self._model.get_parameter(name).detach().numpy())


@pytest.fixture(scope="session")
def weights(
    directory: Callable[[str], Path], model: Callable[[str], LanguageModel]
) -> Callable[[str], ModelWeights]:
    return functools.cache(
        lambda name: HeldWeights(model(name)) if name in UNSTORED else load_weights(directory(name))
    )


def write_ngram(folder: Path) -> Path:
    """Count a random text that repeats itself."""
    from windlass.models.ngram.files import save_model as save_ngram
    from windlass.store.manifest import DirectoryWriter
    from windlass.store.store_dir import StoreDir
    from windlass.train.ngram.blocks import Packing
    from windlass.train.ngram.build import Build
    from windlass.train.ngram.settings import CountSettings as Counted
    from windlass.train.ngram.source import ArraySource

    chance = np.random.default_rng(4)
    phrases = [chance.integers(1, VOCABULARY, chance.integers(2, 7)) for _ in range(60)]
    chosen = [phrases[n] for n in chance.integers(0, 60, 3000)]
    text = np.concatenate([*(np.append(c, 0) if n % 9 == 0 else c for n, c in enumerate(chosen)), [0]])
    order = 4
    settings = Counted(Packing(order, VOCABULARY, 0), (0,) * order, 1 << 28, 1)
    made = Build(ArraySource(text), settings, folder.with_name("counting")).run()
    assert made is not None
    shape = NgramShape(vocabulary=VOCABULARY, context=200, order=order, ngrams=tuple(made.ngrams(order)))
    writer = DirectoryWriter(StoreDir(folder))
    save_ngram(writer, shape, made.promises(), special_tokens={"eos_token_id": 0})
    writer.commit()
    return folder


def write_mlp(folder: Path) -> Path:
    shape = MlpShape(vocabulary=VOCABULARY, context=200, layers=2, width=24, ffn_width=48, window=5)
    model = build(shape, seed=3)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    save_model(model, folder)
    return folder


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return where a model of a statistical family lies."""

    @functools.cache
    def made(family: str) -> Path:
        folder = tmp_path_factory.mktemp("model") / family
        if family == "hmm":
            return write_hidden(HmmShape(vocabulary=VOCABULARY, context=200, states=12), folder)
        return write_ngram(folder) if family == "ngram" else write_mlp(folder)

    return made


@pytest.fixture(scope="session")
def statistical(stored: Callable[[str], Path]) -> Callable[[str], Statistical]:
    """Return a statistical model by the name of its family."""
    return functools.cache(lambda name: Fading() if name == "fading" else load_statistical(stored(name)))


@pytest.fixture(scope="session")
def runner(
    shared: ctypes.CDLL, weights: Callable[[str], ModelWeights], statistical: Callable[[str], Statistical]
) -> Callable[..., Runner]:
    """Return a runner, the same for the same wishes: its blocks hold what earlier tests left in them."""

    @functools.cache
    def made(
        name: str = "llama",
        *,
        precision: str = "float32",
        blocks: int = BLOCKS,
        threads: int = 1,
        half: bool = False,
    ) -> Runner:
        if name in STATISTICAL:
            return StateRunner(statistical(name), blocks=blocks, threads=threads)
        return NativeRunner(
            shared, weights(name), blocks=blocks, threads=threads, precision=precision, half=half
        )

    return made


@pytest.fixture(scope="session")
def engine(runner: Callable[..., Runner]) -> Callable[..., Engine]:
    """Return a fresh engine: `drafts` are "forced" wherever there is something to guess, or off."""

    def made(
        name: str = "llama",
        settings: EngineSettings | None = None,
        *,
        drafts: str = "off",
        adapters: dict[str, int] | None = None,
        **wishes: Any,
    ) -> Engine:
        plain = replace(settings or EngineSettings(), drafts=False)
        one = Engine(runner(name, **wishes), plain, adapters=adapters)
        one._costs = MORE_IS_CHEAPER if drafts == "forced" else None
        return one

    return made


@pytest.fixture(scope="session")
def drain() -> Callable[[Engine], dict[str, list[Answer]]]:
    """Step until nothing is left; blocks are in their places after every step, and none is used at last.

    How long requests waited is left out of what was said: no two runs are alike in it.
    """

    def steps(engine: Engine) -> dict[str, list[Answer]]:
        answers: dict[str, list[Answer]] = {}
        while not engine.is_idle:
            for _, message in engine.step():
                said = (
                    msgspec.structs.replace(message, queued_s=0.0) if isinstance(message, Tokens) else message
                )
                answers.setdefault(said.id, []).append(said)
            engine.check()
        assert engine.blocks_used == 0
        return answers

    return steps
