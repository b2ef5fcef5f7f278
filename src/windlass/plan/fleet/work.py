"""What is to be trained, and what a layout of it may vary.

Input: a job, and sizes from a file where the job's families do not reach. Output: TrainingWork, in which
everything that decides the result is fixed (model, batch, tokens) and only what decides speed is open.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import create_model

from windlass.plan.cost.models import model_named
from windlass.plan.cost.sizes import sizes_of
from windlass.plan.cost.step_config import Precision, Recompute, Sharding, Sizes
from windlass.plan.search import DEFAULT_CONTEXT, build_shape
from windlass.spec.config_model import ConfigModel
from windlass.spec.errors import BadInput, BadJob, NotFound, did_you_mean
from windlass.spec.job import Job
from windlass.spec.read import parse, read_toml
from windlass.spec.shape import FAMILIES
from windlass.spec.sync import Sync

DEFAULT_SOFTWARE = "fsdp2-2025"
"""What our own trainer is made of: FSDP2, DTensor and torch's pipelines."""
PINNED = ("dp", "tp", "pp", "virtual", "cp", "ep", "sharding", "recompute", "micro_batch")
PINNED_WORDS = {"sharding": typing.get_args(Sharding), "recompute": typing.get_args(Recompute)}
MIN_STEPS = 200
EVERY_STEP = Sync()


@dataclass(frozen=True)
class TrainingWork:
    """One training run, independent of devices and layout."""

    sizes: Sizes
    sequence: int
    global_batch: int
    """Sequences."""
    tokens: float
    precisions: tuple[Precision, ...] = ()
    """To choose from; empty for 16 bits, in the form that the device has."""
    software: str = DEFAULT_SOFTWARE
    sync: Sync = EVERY_STEP
    pins: dict[str, Any] = field(default_factory=dict)
    """Choices that the user has made already: name of a field of TrainingStep -> its value."""

    @property
    def steps(self) -> int:
        return max(1, -(-int(self.tokens) // (self.global_batch * self.sequence)))

    def allows(self, name: str, value: Any) -> bool:
        return bool(self.pins.get(name, value) == value)


def work_of(
    job: Job, sizes: Sizes | None = None, *, precisions: tuple[Precision, ...] = (),
    software: str | None = None, pins: dict[str, Any] | None = None,
) -> TrainingWork:  # fmt: skip
    """Read the work out of a job; the corpus need not be there."""
    sizes = sizes or _sizes(job)
    sequence = job.model.context or DEFAULT_CONTEXT
    batch = job.train.batch_sequences or _batch(job, sizes, sequence)
    pinned = dict(pins or {})
    if job.train.micro_batch_sequences is not None:
        pinned.setdefault("micro_batch", job.train.micro_batch_sequences)
    return TrainingWork(
        sizes=sizes,
        sequence=sequence,
        global_batch=batch,
        tokens=_tokens(job, batch * sequence),
        precisions=precisions or _precisions(job),
        software=software or DEFAULT_SOFTWARE,
        sync=job.sync,
        pins=pinned,
    )


def sizes_named(text: str) -> Sizes:
    """Return the sizes in a file, or those of a published model by its name."""
    if text.endswith(".toml") or Path(text).is_file():
        return read_sizes(Path(text))
    return model_named(text).sizes


def read_sizes(path: Path) -> Sizes:
    """Read the sizes of any transformer, mixtures of experts included: the fields of Sizes as TOML."""
    if not path.exists():
        raise NotFound(f"{path}: no such file of sizes", hint="its keys are layers, width, heads, ...")
    hints = typing.get_type_hints(Sizes)
    fields: dict[str, Any] = {
        f.name: (hints[f.name], ... if f.default is dataclasses.MISSING else f.default)
        for f in dataclasses.fields(Sizes)
    }
    table = parse(create_model("SizesFile", __base__=ConfigModel, **fields), read_toml(path), str(path))
    sizes = Sizes(**table.model_dump())
    _check_sizes(sizes, str(path))
    return sizes


def parse_pins(text: str) -> dict[str, Any]:
    """Read "tp=8,recompute=full": choices that the search must keep."""
    pins: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (s.strip() for s in part.partition("="))
        if name not in PINNED:
            raise BadInput(f"--layout {text}: unknown '{name}'", hint=did_you_mean(name, list(PINNED)))
        if not equals or not value:
            raise BadInput(
                f"--layout {text}: write it as axis=number,...", hint="example: tp=8,recompute=full"
            )
        if name in PINNED_WORDS:
            if value not in PINNED_WORDS[name]:
                reason = f"--layout {text}: unknown {name} '{value}'"
                raise BadInput(reason, hint=did_you_mean(value, list(PINNED_WORDS[name])))
            pins[name] = value
        elif value.isdigit() and int(value) > 0:
            pins[name] = int(value)
        else:
            raise BadInput(f"--layout {text}: {name} must be a number of at least 1, not '{value}'")
    return pins


def _sizes(job: Job) -> Sizes:
    """Sizes of the job's own families; its dial is turned to the wanted weights."""
    model, vocabulary = job.model, _vocabulary(job)
    if model.start_from is not None:
        raise BadInput(
            "--fleet: the sizes of [model] start_from are in a registered model",
            hint="give layers, width and heads in place of it, or --sizes FILE.toml",
        )
    if model.family not in FAMILIES:
        raise BadInput(
            f"--fleet: a model of family '{model.family}' is planned for one machine; leave out --fleet",
            hint="fleets are planned for: " + ", ".join(FAMILIES),
        )
    if model.width is not None:
        return sizes_of(build_shape(job, vocabulary, model.width, model.layers))
    if model.parameters is not None:
        return sized(model.parameters, vocabulary)
    raise BadInput(
        "--fleet: the job does not say which model",
        hint="give [model] parameters = '7B', or layers and width",
    )


def sized(parameters: int, vocabulary: int) -> Sizes:
    """Return llama sizes of about `parameters` weights, with heads and layers that many devices can share.

    The proportions of the Llama family: a width of about a hundred times the depth, heads of 128 (of 64 below
    a width of 1024), eight key/value heads from a width of 4096 on (Llama 3, arXiv:2407.21783, table 3).
    """
    widths = (*range(64, 1024, 64), *range(1024, 4096, 256), *range(4096, 32769, 1024))
    dial = ((width, layers) for width in widths for layers in _depths(width))
    sizes = (_llama(width, layers, vocabulary) for width, layers in dial)
    return min(sizes, key=lambda s: abs(math.log(s.parameters / parameters)))


def _depths(width: int) -> range:
    return range(-(-width // 520) * 4, width // 80 + 1, 4) if width >= 1024 else range(width // 64 + 1, 13)


def _llama(width: int, layers: int, vocabulary: int) -> Sizes:
    heads = width // (128 if width >= 1024 else 64)
    kv_heads = 8 if width >= 4096 else heads
    ffn_width = -(-(7 * width // 2 if kv_heads < heads else 8 * width // 3) // 256) * 256
    return Sizes(layers, width, heads, kv_heads, width // heads, ffn_width, True, vocabulary, width < 2048)


def _vocabulary(job: Job) -> int:
    tokenizer = job.corpus.tokenizer
    if tokenizer.kind != "bpe":
        raise BadInput(
            f"--fleet: a tokenizer of kind '{tokenizer.kind}' does not say its vocabulary beforehand",
            hint="give [corpus.tokenizer] kind = 'bpe' with vocabulary, or --sizes FILE.toml",
        )
    return tokenizer.vocabulary


def _batch(job: Job, sizes: Sizes, sequence: int) -> int:
    """Half a million tokens for half a billion weights, growing with their cube root, as GPT-3's did
    (Brown et al. 2020, arXiv:2005.14165, table 2.1); smaller if the run would have too few steps."""
    tokens = 0.5e6 * (sizes.parameters / 0.5e9) ** (1 / 3)
    if job.train.tokens is not None:
        tokens = min(tokens, job.train.tokens / MIN_STEPS)
    return int(1 << max(0, round(tokens / sequence).bit_length() - 1)) if tokens > sequence else 1


def _tokens(job: Job, batch_tokens: int) -> float:
    if job.train.tokens is not None:
        return float(job.train.tokens)
    if job.train.steps is not None:
        return float(job.train.steps * batch_tokens)
    raise BadJob(
        "--fleet: the job does not say how much to train",
        hint="give [train] tokens = '300B', or steps; a time is what the plan answers, or --deadline",
    )


def _precisions(job: Job) -> tuple[Precision, ...]:
    """The job's own arithmetic where it names one; its default is meant for processors."""
    return (job.machine.precision,) if "precision" in job.machine.model_fields_set else ()


def _check_sizes(sizes: Sizes, where: str) -> None:
    numbers = {"layers", "width", "heads", "kv_heads", "head_width", "ffn_width", "vocabulary"}
    low = next((name for name in sorted(numbers) if getattr(sizes, name) < 1), None)
    if low is not None:
        raise BadInput(f"{where}: {low} is {getattr(sizes, low)}; it must be at least 1")
    if sizes.experts and not (1 <= sizes.top_k <= sizes.experts and sizes.expert_width >= 1):
        raise BadInput(
            f"{where}: {sizes.experts} experts need top_k from 1 to {sizes.experts}, and expert_width"
        )
    if not sizes.experts and (sizes.top_k or sizes.expert_width):
        raise BadInput(f"{where}: top_k and expert_width belong to a model with experts")
