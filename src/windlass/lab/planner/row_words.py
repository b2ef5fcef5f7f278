"""Translates the terms of published rows for sharding, recomputation, precision, attention and software.

Every project has its own; an empty cell means the default of that software at its time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from windlass.plan.cost.software_defaults import habits_of
from windlass.plan.cost.step_config import Attention, Precision, Recompute, Sharding

_ZERO = re.compile(r"zero\D{0,8}([0-3])")
STAGES: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "full")
_OF = re.compile(r"(\d+) of (\d+)")
_KERNELS: tuple[tuple[re.Pattern[str], Attention], ...] = (
    (re.compile(r"flash\D*[34]|\bfa-?[34]|cudnn"), "flash3"),
    (re.compile(r"flash|\bfa-?[12]|sdpa|xformers"), "flash"),
    (re.compile(r"unfused|eager|math"), "unfused"),
    (re.compile(r"fused"), "fused-softmax"),
)


@dataclass(frozen=True)
class Era:
    """A framework at some time, as named in the table of constants, with its defaults."""

    software: str
    sequence_parallel: bool
    skips_every_second: bool = False
    """Whether "selective" means to recompute every second matrix product, not only attention."""

    def attention_of(self, word: str) -> Attention:
        """Return the kernel that the word names, or the default."""
        usual, named = habits_of(self.software).attention, kernel_of(word)
        flashes = word.lower() == "flash" and usual == "flash3"  # the word gives no version
        return usual if named is None or flashes else named


ERAS = (
    ("megatron-bridge", Era("megatron-core-2025", True)),
    ("nemo automodel", Era("fsdp2-2025", True)),
    ("torchtitan", Era("fsdp2-2025", True, skips_every_second=True)),
    ("nemo", Era("megatron-core-2025", True)),
    ("megatron-core", Era("megatron-core-2025", True)),
    ("megatron-deepspeed", Era("megatron-deepspeed-2022", False)),
    ("megatron+deepspeed", Era("megatron-deepspeed-2022", False)),
    ("megatron-lm/deepspeed", Era("megatron-deepspeed-2022", False)),
    ("gpt-neox", Era("megatron-deepspeed-2022", False)),
    ("deepspeed", Era("megatron-deepspeed-2022", False)),
    ("megatron", Era("megatron-2021", False)),
    ("nanotron", Era("nanotron-2024", True)),
    ("llm-foundry", Era("fsdp-2023", False)),
    ("composer", Era("fsdp-2023", False)),
    ("accelerate", Era("fsdp-2023", False)),
    ("olmo", Era("fsdp-2023", False)),
    ("litgpt", Era("fsdp-2023", False)),
    ("fsdp2", Era("fsdp2-2025", True)),
    ("fsdp", Era("fsdp-2023", False)),
    ("llm.c", Era("llm.c-2024", False)),
)
"""By a substring of the framework's name; the first match counts."""
EAGER = "-eager"
OF_2021 = ("V100", "A100")

FULL = ("full", "uniform", "block", "checkpoint", "activation", "yes", "true", "on", "1")
"""Prefixes of words for full recomputation."""
PRECISIONS: tuple[tuple[str, Precision], ...] = (
    ("fp4", "float4"), ("float4", "float4"), ("fp8", "float8"), ("float8", "float8"),
    ("bf16", "bfloat16"), ("bfloat16", "bfloat16"),
    ("fp16", "float16"), ("float16", "float16"), ("fp32", "float32"), ("tf32", "float32"),
)  # fmt: skip


def era_of(framework: str, notes: str, attention: str = "", gpu: str = "") -> Era:
    """Return the era of a framework; an unknown one counts as current software.

    Megatron with flash attention, or on a device newer than the A100, is not that of 2021.
    """
    name = framework.lower()
    era = next((era for word, era in ERAS if word in name), Era("", True))
    flashes = (kernel_of(attention) or "").startswith("flash")
    if era.software == "megatron-2021" and (flashes or not gpu.startswith(OF_2021)):
        era = dict(ERAS)["megatron-core"]
    if re.search(r"\beager\b", notes):
        return replace(era, software=era.software + EAGER)
    return era


def kernel_of(word: str) -> Attention | None:
    """Return the attention kernel that a word names, or None."""
    return next((kernel for named, kernel in _KERNELS if named.search(word.lower())), None)


def precision_of(word: str) -> Precision | None:
    """Return the precision of matrix products; "amp_fp8" and "MXFP8" are float8."""
    if not word:
        return "bfloat16"
    return next((ours for theirs, ours in PRECISIONS if theirs in word.lower()), None)


def sharding_of(word: str, dp: int, cp: int = 1) -> tuple[Sharding, int]:
    """Return what is sharded, and over how many devices.

    A stated number refers to data parallelism; context-parallel devices shard weights as well.
    """
    lower = word.lower()
    stage = _ZERO.search(lower)
    kind: Sharding = "none"
    if stage is not None:
        kind = STAGES[int(stage[1])]
    elif "grad_op" in lower:
        kind = "gradients"
    elif "fsdp" in lower or "hsdp" in lower:
        kind = "full"
    elif "optimizer" in lower:
        kind = "optimizer"
    stated = re.search(r"shard=(\d+)", lower)
    return (kind, cp * (int(stated[1]) if stated else dp)) if kind != "none" else ("none", 1)


def recompute_of(word: str, era: Era) -> tuple[Recompute, float]:
    """Return the policy and the share of the layers to which it applies."""
    lower = word.lower()
    if lower.startswith(FULL):
        part = _OF.search(lower)
        return "full", int(part[1]) / int(part[2]) if part else 1.0
    if lower.startswith("selective"):
        return ("full", 0.5) if era.skips_every_second else ("selective", 1.0)
    return "none", 1.0
