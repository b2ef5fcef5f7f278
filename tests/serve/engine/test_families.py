"""The statistical families in the engine: real models, small, made here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from test_exactness import ALONE, a_crowded_engine, some_requests, together

from windlass.corpus.tokenizer import Tokenizer
from windlass.models.build import build
from windlass.models.files import read_config
from windlass.models.huggingface import save_model
from windlass.models.statistical import Statistical, load_statistical
from windlass.operate.bench.subjects import write_hidden
from windlass.serve.engine.load import Options, load_engine, open_runner
from windlass.serve.engine.opening import _model_bytes
from windlass.serve.engine.perplexity import summed_loss
from windlass.serve.engine.runner import block_bytes
from windlass.serve.engine.state_runner import StateRunner
from windlass.serve.engine.step import Answer, Engine, Settings
from windlass.spec.errors import BadInput
from windlass.spec.shape import HmmShape, MlpShape, NgramShape
from windlass.spec.wire import Embed, Failed, Generate, Vectors

FAMILIES = ("ngram", "hmm", "mlp")
VOCABULARY = 101
QUIET = Settings(drafts=False)

Drain = Callable[[Engine], dict[str, list[Answer]]]
Stored = Callable[[str], Path]


def words() -> bytes:
    """A tokenizer of as many words as the models know."""
    from tokenizers import Tokenizer as Words
    from tokenizers.models import WordLevel

    vocabulary = {"<|end|>": 0, **{f"w{n}": n for n in range(1, VOCABULARY)}}
    return Words(WordLevel(vocabulary, unk_token="w1")).to_str().encode()


def write_ngram(folder: Path) -> Path:
    """Count a random text that repeats itself."""
    from windlass.models.ngram.files import save_model as save_ngram
    from windlass.store.manifest import DirectoryWriter
    from windlass.store.place import Place
    from windlass.train.counting.blocks import Packing
    from windlass.train.counting.build import Build
    from windlass.train.counting.settings import Settings as Counted
    from windlass.train.counting.source import ArraySource

    chance = np.random.default_rng(4)
    phrases = [chance.integers(1, VOCABULARY, chance.integers(2, 7)) for _ in range(60)]
    chosen = [phrases[n] for n in chance.integers(0, 60, 3000)]
    text = np.concatenate([*(np.append(c, 0) if n % 9 == 0 else c for n, c in enumerate(chosen)), [0]])
    order = 4
    settings = Counted(Packing(order, VOCABULARY, 0), (0,) * order, 1 << 28, 1)
    made = Build(ArraySource(text), settings, folder.with_name("counting")).run()
    assert made is not None
    shape = NgramShape(vocabulary=VOCABULARY, context=200, order=order, ngrams=tuple(made.ngrams(order)))
    writer = DirectoryWriter(Place(folder))
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


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return where a model of a family lies."""

    @functools.cache
    def made(family: str) -> Path:
        folder = tmp_path_factory.mktemp("model") / family
        if family == "hmm":
            return write_hidden(HmmShape(vocabulary=VOCABULARY, context=200, states=12), folder)
        return write_ngram(folder) if family == "ngram" else write_mlp(folder)

    return made


@pytest.fixture(scope="module")
def model(stored: Stored) -> Callable[[str], Statistical]:
    return functools.cache(lambda family: load_statistical(stored(family)))


@pytest.fixture
def engine(model: Callable[[str], Statistical]) -> Callable[..., Engine]:
    """An engine as test_exactness.py wants it; precision makes no difference here."""

    def made(family: str, settings: Settings, *, blocks: int = 64, drafts: str = "off", **_: object) -> Engine:
        from conftest import MORE_IS_CHEAPER

        plain = Settings(**{**vars(settings), "drafts": False})
        one = Engine(StateRunner(model(family), blocks=blocks), plain)
        one._costs = MORE_IS_CHEAPER if drafts == "forced" else None
        return one

    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(6))
def test_company_and_schedule_do_not_change_an_answer(
    family: str, seed: int, engine: Callable[..., Engine], drain: Drain
) -> None:
    import random

    chance = random.Random(seed)
    requests = some_requests(chance)
    got = together(a_crowded_engine(chance, engine, family), requests, chance)
    for request in requests:
        single = engine(family, ALONE)
        single.add("me", request)
        assert got[request.id] == drain(single)[request.id], (seed, request)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_served_costs_what_is_measured(
    family: str, stored: Stored, model: Callable[[str], Statistical]
) -> None:
    windows = np.random.default_rng(1).integers(0, VOCABULARY, (3, 50))
    runner = open_runner(stored(family), Options(QUIET, threads=1))
    measured = -model(family).logprobs(windows[:, :-1], windows[:, 1:]).sum()
    assert summed_loss(runner, windows) == pytest.approx(measured, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_is_what_a_shelf_counts(family: str, stored: Stored, model: Callable[[str], Statistical]) -> None:
    runner = open_runner(stored(family), Options(QUIET, threads=1))
    assert isinstance(runner, StateRunner)
    assert block_bytes(runner.shape, half=True) * runner.blocks == runner._states_NPS.nbytes
    weights = stored(family) / "model.safetensors"
    counted = _model_bytes(stored(family), runner.shape, "float32")
    assert counted == pytest.approx(weights.stat().st_size, rel=0.2)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_become_vectors_where_a_family_has_them(family: str, stored: Stored, drain: Drain) -> None:
    engine = load_engine(stored(family), Options(QUIET, threads=1))
    assert isinstance(engine, Engine)
    engine.add("me", Embed("a", [[3, 4, 5], [3, 4, 6], [90, 91]]))
    (answer,) = drain(engine)["a"]
    if family == "ngram":
        assert isinstance(answer, Failed)
        return
    assert isinstance(answer, Vectors)
    assert {len(vector) for vector in answer.vectors} == {engine.shape.width}
    near, far = (float(np.dot(answer.vectors[0], answer.vectors[n])) for n in (1, 2))
    assert near > far


@pytest.mark.parametrize("family", FAMILIES)
def test_other_ways_to_compute_are_refused(family: str, stored: Stored) -> None:
    for options in (Options(runner="torch"), Options(precision="int8")):
        with pytest.raises(BadInput, match=family):
            open_runner(stored(family), options)
    with pytest.raises(BadInput, match="LoRA"):
        load_engine(stored(family), Options(), {"poet": Path("nowhere")})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_can_be_given_a_form(family: str, stored: Stored, drain: Drain) -> None:
    folder = stored(family)
    (folder / "tokenizer.json").write_bytes(words())
    assert Tokenizer(words()).vocabulary == read_config(folder)["vocabulary"]
    engine = load_engine(folder, Options(QUIET, threads=1))
    assert isinstance(engine, Engine)
    engine.add("me", Generate("a", [3, 4], 4, temperature=0.0, grammar='root ::= "w7w8" "w9"'))
    tokens = [token for said in drain(engine)["a"] for token in getattr(said, "tokens", [])]
    assert tokens == [7, 8, 9]
