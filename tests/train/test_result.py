"""A model directory from a checkpoint in parts: the same bytes as from the model, without the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from windlass.corpus.corpus_dir import load_corpus
from windlass.models.build import build
from windlass.models.huggingface import save_model, save_weights
from windlass.models.language import LanguageModel
from windlass.parallel.param_shard import ParamShard, holdings_of
from windlass.spec.run import Run
from windlass.spec.shape import BertShape, DecoderShape
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.checkpoint.shard import claims_of, part_name, take_part
from windlass.train.evaluate import Evaluation
from windlass.train.result import save_result

SHAPES = {
    "llama": DecoderShape(vocabulary=97, context=64, layers=2, width=48, heads=6, kv_heads=2, ffn_width=88),
    "gpt2": DecoderShape(family="gpt2", vocabulary=97, context=64, layers=2, width=48, heads=6, ffn_width=88),
    "bert": BertShape(vocabulary=97, context=64, layers=2, width=48, heads=6, ffn_width=88),
}
LARGE = DecoderShape(family="gpt2", vocabulary=512, context=64, layers=24, width=256, heads=4, ffn_width=1024)

EXPORT = """
import json, sys
from pathlib import Path
from windlass.models.huggingface import save_weights
from windlass.spec.shape import DecoderShape
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.reader import CheckpointReader

source, target, shape = Path(sys.argv[1]), sys.argv[2], DecoderShape.model_validate_json(sys.argv[3])

def own_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024

class Watched(StoreDir):
    most = 0
    def writing(self, name):
        return Watching(super().writing(name))

class Watching:
    def __init__(self, inner):
        self.inner = inner
    def __enter__(self):
        self.file = self.inner.__enter__()
        return self
    def __exit__(self, *error):
        return self.inner.__exit__(*error)
    def write(self, data):
        Watched.most = max(Watched.most, own_bytes())
        return self.file.write(data)

weights = CheckpointReader(source)
before = own_bytes()
save_weights(shape, weights, Watched(target))
streamed = Watched.most - before
held = [weights.read(name) for name in weights.names()]
print(json.dumps({"streamed": streamed, "held": own_bytes() - before}))
"""


def checkpoint_of(model: LanguageModel, folder: Path, parts: int) -> CheckpointReader:
    """Write the weights as so many ranks would that divide every one along its first dimension."""
    writer = DirectoryWriter(StoreDir(folder))
    for rank in range(parts):
        held = [_share(holding, parts, rank) for holding in holdings_of(model)]
        optimizer = torch.optim.AdamW([holding.tensor for holding in held])
        part = take_part(held, optimizer, {}, keys=claims_of(held, None), replica=None)
        part.write(writer, part_name(rank))
    writer.commit()
    return CheckpointReader(folder)


def _share(holding: ParamShard, parts: int, part: int) -> ParamShard:
    box = holding.box.divided(0, parts, part)
    return replace(holding, box=box, tensor=nn.Parameter(holding.tensor.detach()[box.within(holding.box)]))


@pytest.mark.parametrize("family", SHAPES)
def test_a_directory_from_parts_has_the_bytes_of_one_from_the_model(tmp_path: Path, family: str) -> None:
    shape = SHAPES[family]
    model = build(shape, seed=3)
    source = checkpoint_of(model, tmp_path / "parts", 3)
    for limit in (10**9, 30_000):
        streamed, direct = tmp_path / f"streamed-{limit}", tmp_path / f"direct-{limit}"
        save_weights(shape, source, StoreDir(streamed), max_shard_bytes=limit)
        save_model(model, direct, max_shard_bytes=limit)
        assert contents(streamed) == contents(direct)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_result_is_a_model_that_transformers_loads(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    run = make_run(model={"family": "gpt2"})
    model = build(run.shape, seed=3)
    source = checkpoint_of(model, tmp_path / "parts", 2)
    found = Evaluation(loss=1.0, perplexity=2.7, bits_per_byte=1.4, tokens=10, sequences=1)
    target = save_result(tmp_path, run, source, load_corpus(Path(run.corpus)), found)
    verify(StoreDir(target))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(target).eval()
    tokens = torch.randint(0, run.shape.vocabulary, (2, 20))
    with torch.no_grad():
        wanted = model.logits(model(tokens))
        torch.testing.assert_close(theirs(tokens).logits, wanted, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_the_model_is_never_in_memory_while_its_directory_is_written(tmp_path: Path) -> None:
    """In a process of its own: the memory that training once used here would hide what is used anew."""
    model = build(LARGE, seed=3)
    checkpoint_of(model, tmp_path / "parts", 3)
    weights = sum(p.nbytes for p in model.parameters())
    largest = 4 * LARGE.width * LARGE.ffn_width
    command = [
        sys.executable,
        "-c",
        EXPORT,
        str(tmp_path / "parts"),
        str(tmp_path / "out"),
        LARGE.model_dump_json(),
    ]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told["held"] > 0.9 * weights  # so the measure sees a model when there is one
    assert told["streamed"] < 6 * largest
    assert told["streamed"] < 0.1 * weights
