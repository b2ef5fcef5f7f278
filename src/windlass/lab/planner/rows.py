"""Published measurements: each line of a CSV file as a TrainingStep with its measurements, or why it is none.

Input: a file with the columns of `training_rows.csv`. Output: PublishedRows. Missing values are derived if
possible (dp from the devices, micro-batches from the batch); guessed values are marked, so that a validation
can count only the lines with complete inputs.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from windlass.lab.planner.row_device import row_device
from windlass.lab.planner.row_words import Era, era_of, precision_of, recompute_of, sharding_of
from windlass.plan.cost.step_config import Sizes, TrainingStep
from windlass.spec.errors import BadInput

COLUMNS = {
    "set", "framework", "model", "layers", "hidden", "heads", "seq", "gpu", "n_gpus", "global_batch",
    "micro_batch", "tp", "pp", "sharding", "recompute", "precision", "iter_time_s", "mem_gb", "outcome",
}  # fmt: skip
"""Required columns; any other may be absent, which is the same as empty."""

HEAD_WIDTHS = {"qwen3": 128, "gpt-oss": 64, "deepseek": 128, "kimi": 128}
"""Head widths of families where it is not width / heads (model cards); there is no column for it."""
LATENT = (1536, 512)
"""Ranks of queries and keys/values of DeepSeek-V3 (arXiv:2412.19437) and similar models."""
FIRST_DENSE = {"deepseek": 3, "kimi": 1}
SHARED_EXPERTS = {"deepseek": 1, "kimi": 1}

WIDE_GRADIENTS = '"Rebalancing layers"'
"""The section of BLOOM's training log from which gradients were accumulated in float32."""


@dataclass(frozen=True)
class PublishedRow:
    """One line: the measurements, and the measured step."""

    line: int
    set: str
    label: str
    case: TrainingStep | None
    why: str
    """Why there is no step; empty if there is one."""
    guessed: tuple[str, ...]
    seconds: float | None
    memory_bytes: float | None
    memory_kind: str
    outcome: str

    @property
    def whole(self) -> bool:
        """Whether neither the model's sizes nor the micro-batch had to be guessed."""
        return self.case is not None and not {"sizes", "micro-batch"} & set(self.guessed)


class _Missing(Exception):
    """A required cell is empty or cannot be parsed."""


class _Line:
    """Cells of one line by name, as numbers or as words."""

    def __init__(self, cells: dict[str, str]) -> None:
        self.cells = cells

    def word(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        try:
            return float(self.word(name))
        except ValueError:
            return None

    def count(self, name: str, default: int | None = None) -> int:
        value = self.number(name)
        if value is not None and value >= 1 and value == int(value):
            return int(value)
        if default is None or (value is not None and value > 0):
            raise _Missing(f"no {name}" if value is None else f"{name} is {self.word(name)}")
        return default


def read_rows(path: Path) -> list[PublishedRow]:
    """Read every line of a file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            absent = COLUMNS - set(reader.fieldnames or ())
            if absent:
                raise BadInput(
                    f"{path}: no column {', '.join(sorted(absent))}",
                    hint="docs/planner.md lists the columns of a file with measured training steps",
                )
            return [_row(number, _Line(cells)) for number, cells in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path}: cannot be read as CSV: {error}", hint="name a CSV file of measured rows"
        ) from None


def _row(number: int, line: _Line) -> PublishedRow:
    case, why = None, ""
    guessed: list[str] = []
    try:
        case = _case(line, guessed)
    except _Missing as missing:
        why = str(missing)
    gigabytes = line.number("mem_gb")
    return PublishedRow(
        line=number,
        set=line.word("set"),
        label=_label(line),
        case=case,
        why=why,
        guessed=tuple(guessed),
        seconds=_seconds(line),
        memory_bytes=None if gigabytes is None else gigabytes * 2**30,  # torch and nvidia-smi use these units
        memory_kind=line.word("mem_kind"),
        outcome=line.word("outcome") or "ok",
    )


def _label(line: _Line) -> str:
    axes = " ".join(
        f"{axis}{line.word(axis)}" for axis in ("tp", "pp", "cp", "ep", "dp") if line.word(axis) > "1"
    )
    parts = (
        line.word("model"),
        f"{line.word('n_gpus')}x{line.word('gpu')}",
        axes,
        f"mb{line.word('micro_batch')}",
    )
    return " ".join(filter(None, parts))


def _seconds(line: _Line) -> float | None:
    """Return the measured step time, or derive it from tokens per second."""
    if seconds := line.number("iter_time_s"):
        return seconds
    rate, batch = line.number("tokens_s_gpu"), line.number("global_batch")
    sequence, devices = line.number("seq"), line.number("n_gpus")
    if rate and batch and sequence and devices:
        return batch * sequence / (devices * rate)
    return None


def _case(line: _Line, guessed: list[str]) -> TrainingStep:
    if line.word("task") not in ("", "pretrain"):
        raise _Missing(f"task {line.word('task')} is not pre-training")
    era = era_of(line.word("framework"), line.word("notes"), line.word("attn"), line.word("gpu"))
    devices = line.count("n_gpus")
    per_machine = min(line.count("gpus_per_node", 8), devices)
    device = row_device(line.word("gpu"), line.word("interconnect"), line.count("gpus_per_node", 8))
    if device is None:
        raise _Missing(f"unknown gpu {line.word('gpu') or '(empty)'}")
    tp, pp, cp = line.count("tp", 1), line.count("pp", 1), line.count("cp", 1)
    dp = devices // (tp * pp * cp)
    if dp * tp * pp * cp != devices:
        raise _Missing("tp x pp x cp x dp is not the number of devices")
    global_batch = line.count("global_batch")
    sharding, shards = sharding_of(line.word("sharding"), dp, cp)
    recompute, share = recompute_of(line.word("recompute"), era)
    precision = precision_of(line.word("precision"))
    if precision is None:
        raise _Missing(f"unknown precision {line.word('precision')}")
    if precision not in device.peak_flops:
        raise _Missing(f"{device.name} has no {precision}")
    if not line.word("recompute"):
        guessed.append("recompute")
    return TrainingStep(
        sizes=_sizes(line, guessed),
        sequence=line.count("seq"),
        global_batch=global_batch,
        micro_batch=_micro_batch(line, global_batch, dp, guessed),
        device=device,
        devices=devices,
        per_machine=per_machine,
        tp=tp,
        sequence_parallel=tp > 1 and _sequence_parallel(line, era),
        pp=pp,
        virtual=line.count("vpp", 1),
        cp=cp,
        ep=line.count("ep", 1),
        dp=dp,
        sharding=sharding,
        shards=shards,
        recompute=recompute,
        recompute_share=share,
        precision=precision,
        attention=era.attention_of(line.word("attn")),
        software=era.software,
        gradient_bytes=_gradient_bytes(line),
        overlaps_tensor=True if "async tp" in line.word("notes").lower() else None,
        fused_loss=_narrow_loss(line),
    )


def _gradient_bytes(line: _Line) -> int | None:
    """Return the gradient size, as documented elsewhere; Megatron-Bridge's fast recipes use bfloat16."""
    if WIDE_GRADIENTS in line.word("source"):
        return 4
    return 2 if line.word("framework") == "Megatron-Bridge" else None


def _narrow_loss(line: _Line) -> bool:
    """Whether logits were never in float32: Composer's "bf16" without "amp", llm.c, torchtitan since 2025.

    Since then it compiles the loss whenever it compiles the model; llm.c has a kernel for it.
    """
    if "llm.c" in line.word("framework"):
        return True
    if "llm-foundry" in line.word("framework"):
        return line.word("precision") == "bf16"
    dated = re.search(r"_(20\d\d)-?\d\d", line.word("source"))
    compiles = line.word("framework") == "torchtitan" and "compile" in line.word("notes")
    return compiles and dated is not None and int(dated[1]) >= 2025


def _micro_batch(line: _Line, global_batch: int, dp: int, guessed: list[str]) -> int:
    share, micro = global_batch / dp, line.number("micro_batch")
    if micro is None and (steps := line.number("grad_accum")):
        micro = share / steps
    if micro is None:
        guessed.append("micro-batch")
        micro = 1
    if micro < 1 or micro != int(micro):
        raise _Missing(f"micro_batch is {micro:g}")
    if micro > share:
        raise _Missing("micro_batch x dp is more than the global batch")
    return int(micro)


def _sequence_parallel(line: _Line, era: Era) -> bool:
    stated = line.word("sp")
    return era.sequence_parallel if not stated else stated not in ("0", "no", "false")


def _sizes(line: _Line, guessed: list[str]) -> Sizes:
    width, heads, latent = line.count("hidden"), line.count("heads"), line.word("kv_heads") == "MLA"
    family = next((name for name in HEAD_WIDTHS if line.word("model").lower().startswith(name)), "")
    if line.word("dims_src").startswith("recalled"):
        guessed.append("sizes")
    if not (family or width % heads == 0):
        raise _Missing("heads do not divide hidden, and the model's head width is not known")
    experts = line.count("n_experts", 0)
    expert_width = line.count("expert_ffn" if line.word("expert_ffn") else "ffn") if experts else 0
    return Sizes(
        layers=line.count("layers"),
        width=width,
        heads=heads,
        kv_heads=heads if latent else line.count("kv_heads", heads),
        head_width=HEAD_WIDTHS.get(family, width // heads),
        ffn_width=line.count("ffn", expert_width or None),
        gated=line.word("gated_mlp") == "1",
        vocabulary=line.count("vocab"),
        tied=line.word("tied_emb") != "0",
        experts=experts,
        top_k=line.count("topk") if experts else 0,
        expert_width=expert_width,
        shared_width=SHARED_EXPERTS.get(family, 0) * expert_width,
        dense_layers=FIRST_DENSE.get(family, 0) if experts else 0,
        latent=LATENT if latent else None,
    )
