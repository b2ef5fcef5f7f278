"""Published rows become cases, or say why not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from windlass.lab.planner.rows import COLUMNS, PublishedRow, read_rows
from windlass.spec.errors import BadInput

GOOD = {
    "set": "here", "framework": "Megatron-LM", "model": "GPT-22B", "layers": "48", "hidden": "6144",
    "heads": "64", "ffn": "24576", "vocab": "51200", "gated_mlp": "0", "tied_emb": "1", "seq": "2048",
    "gpu": "A100-80GB-SXM", "n_gpus": "16", "gpus_per_node": "8",
    "interconnect": "NVLink3; 8x200 Gbit/s HDR IB per node",
    "global_batch": "8", "micro_batch": "2", "tp": "8", "pp": "1", "sharding": "DDP", "recompute": "full",
    "precision": "fp16", "iter_time_s": "1.42", "mem_gb": "", "outcome": "ok",
}  # fmt: skip


def read_one(folder: Path, **changed: str) -> PublishedRow:
    cells = GOOD | changed
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted(COLUMNS | set(cells)))
        writer.writeheader()
        writer.writerow(cells)
    return read_rows(folder / "rows.csv")[0]


def test_what_arithmetic_gives_is_not_guessed(tmp_path: Path) -> None:
    row = read_one(tmp_path)
    assert row.case is not None
    assert (row.case.dp, row.case.micro_batches, row.case.sizes.head_width) == (2, 2, 96)
    assert row.case.device.network_bytes_s == 25e9
    assert row.whole
    assert not row.guessed


def test_the_micro_batch_follows_from_accumulation(tmp_path: Path) -> None:
    row = read_one(tmp_path, micro_batch="", grad_accum="4")
    assert row.case is not None
    assert row.case.micro_batch == 1
    assert row.whole


def test_a_guessed_micro_batch_makes_a_row_not_whole(tmp_path: Path) -> None:
    row = read_one(tmp_path, micro_batch="")
    assert row.case is not None
    assert row.guessed == ("micro-batch",)
    assert not row.whole


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"heads": ""}, "no heads"),
        ({"n_gpus": "12"}, "tp x pp x cp x dp is not the number of devices"),
        ({"gpu": "Z900"}, "unknown gpu Z900"),
        ({"precision": "FP8"}, "A100-SXM4-80GB has no float8"),
        ({"micro_batch": "16"}, "micro_batch x dp is more than the global batch"),
        ({"task": "lora"}, "task lora is not pre-training"),
        ({"layers": "x"}, "no layers"),
        ({"layers": "-3"}, "layers is -3"),
    ],
)
def test_a_row_that_cannot_be_a_case_says_why(tmp_path: Path, changed: dict[str, str], why: str) -> None:
    row = read_one(tmp_path, **changed)
    assert row.case is None
    assert row.why == why


@pytest.mark.parametrize(
    ("word", "sharding", "shards"),
    [
        ("DDP", "none", 1),
        ("ZeRO-1", "optimizer", 2),
        ("distributed optimizer", "optimizer", 2),
        ("ZeRO stage 2", "gradients", 2),
        ("zero3", "full", 2),
        ("FSDP SHARD_GRAD_OP DEFAULT", "gradients", 2),
        ("FSDP FULL_SHARD PURE", "full", 2),
        ("FSDP2 shard=1", "full", 1),
        ("HSDP shard=1", "full", 1),
    ],
)
def test_words_for_sharding_are_understood(tmp_path: Path, word: str, sharding: str, shards: int) -> None:
    case = read_one(tmp_path, sharding=word).case
    assert case is not None
    assert (case.sharding, case.shards) == (sharding, shards)


def test_a_part_of_the_layers_may_be_computed_twice(tmp_path: Path) -> None:
    case = read_one(tmp_path, recompute="full (block, 12 of 48 layers)").case
    assert case is not None
    assert (case.recompute, case.recompute_share) == ("full", 0.25)


@pytest.mark.parametrize(
    ("framework", "gpu", "software", "attention"),
    [
        ("Megatron-LM", "A100-80GB-SXM", "megatron-2021", "fused-softmax"),
        ("Megatron-LM", "H100-80GB-SXM", "megatron-core-2025", "flash3"),
        ("something of one's own", "H100-80GB-SXM", "", "flash"),
    ],
)
def test_a_framework_is_of_the_time_of_its_devices(
    tmp_path: Path, framework: str, gpu: str, software: str, attention: str
) -> None:
    case = read_one(tmp_path, framework=framework, gpu=gpu).case
    assert case is not None
    assert (case.software, case.attention) == (software, attention)


@pytest.mark.parametrize(
    ("framework", "word", "attention"),
    [
        ("Megatron-Bridge", "flash", "flash3"),
        ("Megatron-Bridge", "flash2", "flash"),
        ("torchtitan", "FlashAttention-3", "flash3"),
        ("torchtitan", "sdpa-flash", "flash"),
        ("Megatron-Bridge", "FA2", "flash"),
        ("Megatron-LM", "fused-softmax", "fused-softmax"),
        ("Megatron-LM", "unfused", "unfused"),
    ],
)
def test_a_kernel_of_attention_is_the_named_one_or_that_of_the_software(
    tmp_path: Path, framework: str, word: str, attention: str
) -> None:
    case = read_one(tmp_path, framework=framework, attn=word).case
    assert case is not None
    assert case.attention == attention


def test_a_row_may_say_that_exchanges_pass_behind_products(tmp_path: Path) -> None:
    said, silent = (
        read_one(tmp_path, notes=notes).case for notes in ("async TP; local batch 16", "vanilla TP")
    )
    assert said is not None
    assert silent is not None
    assert (said.overlaps_tensor, silent.overlaps_tensor) == (True, None)


def test_seconds_follow_from_tokens_a_second(tmp_path: Path) -> None:
    row = read_one(tmp_path, iter_time_s="", tokens_s_gpu="1024")
    assert row.seconds == 8 * 2048 / (16 * 1024)


def test_a_file_of_something_else_is_refused_with_the_columns_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"other\.csv: no column framework, global_batch"):
        read_rows(tmp_path / "other.csv")


def test_a_file_that_is_not_there_is_said_to_be_unreadable(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.csv: cannot be read"):
        read_rows(tmp_path / "none.csv")


def test_memory_is_counted_as_torch_and_the_driver_count_it(tmp_path: Path) -> None:
    row = read_one(tmp_path, mem_gb="40", mem_kind="peak allocated")
    assert row.memory_bytes == 40 * 2**30
    assert row.case is not None
    assert row.case.device.memory_bytes == 80 * 2**30


@pytest.mark.parametrize(
    ("changed", "software"),
    [
        ({}, "megatron-2021"),
        ({"attn": "flash2"}, "megatron-core-2025"),
        ({"gpu": "B200", "precision": "bf16"}, "megatron-core-2025"),
    ],
)
def test_megatron_is_as_old_as_what_it_runs_with(
    tmp_path: Path, changed: dict[str, str], software: str
) -> None:
    row = read_one(tmp_path, **changed)
    assert row.case is not None
    assert row.case.software == software


@pytest.mark.parametrize(
    ("changed", "bytes_each"),
    [
        ({}, None),
        ({"source": 'chronicles.md line 904 "Rebalancing layers"'}, 4),
        ({"framework": "Megatron-Bridge"}, 2),
    ],
)
def test_gradients_are_as_wide_as_the_source_says(
    tmp_path: Path, changed: dict[str, str], bytes_each: int | None
) -> None:
    row = read_one(tmp_path, **changed)
    assert row.case is not None
    assert row.case.gradient_bytes == bytes_each


@pytest.mark.parametrize(
    ("changed", "narrow"),
    [
        ({"framework": "llm-foundry/Composer FSDP", "precision": "bf16"}, True),
        ({"framework": "llm-foundry/Composer FSDP", "precision": "amp_bf16"}, False),
        ({"framework": "torchtitan", "notes": "T1 compile", "source": "llama3_h100_202412.md"}, False),
        ({"framework": "torchtitan", "notes": "compile+Float8", "source": "llama3_h200_202506.md"}, True),
        ({"framework": "torchtitan", "notes": "eager", "source": "llama3_h200_202506.md"}, False),
    ],
)
def test_a_loss_is_narrow_where_the_software_never_widens_it(
    tmp_path: Path, changed: dict[str, str], narrow: bool
) -> None:
    row = read_one(tmp_path, **changed)
    assert row.case is not None
    assert row.case.fused_loss is narrow
