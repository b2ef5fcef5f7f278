"""Divides heads, inner features and the vocabulary among processes (tensor parallel).

Input: a model for one device. Output: the same model, whose matrices hold their part of the features and
whose modules exchange activations where needed; its code stays as it is. Query, key, value and the first
matrices of the feed-forward part are cut by rows, the matrices after them by columns, so that one exchange
closes each pair (Shoeybi et al. 2019, arXiv:1909.08053). With sequence parallel, what lies between the
pairs (norms, residual stream) is divided by tokens instead of being held by all (Korthikanti et al. 2022,
arXiv:2205.05198).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from windlass.models.language import LanguageModel

ATTENTION_INPUTS = {"llama": 4, "gpt2": 3, "bert": 3}
"""What a block passes to its attention: the stream, then things that are not divided."""


def divide_features(model: LanguageModel, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Let the processes of `mesh` hold a part of the features each."""
    between = Shard(1) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for number in model.layers:
        plan |= {f"layers.{number}.{name}": style for name, style in _block_plan(model, between).items()}
    present = dict(model.named_modules())
    plan |= {name: style for name, style in _end_plan(between).items() if present.get(name) is not None}
    parallelize_module(model, mesh, plan, src_data_rank=None)


def _block_plan(model: LanguageModel, between: Shard | Replicate) -> dict[str, ParallelStyle]:
    others = (None,) * (ATTENTION_INPUTS[model.shape.family] - 1)
    columns, rows = ColwiseParallel, RowwiseParallel
    plan: dict[str, ParallelStyle] = {
        "attention": _gathered(between, *others),
        "attention.query": columns(),
        "attention.key": columns(),
        "attention.value": columns(),
        "attention.output": rows(output_layouts=between),
        "ffn": _gathered(between),
        "ffn.up": columns(),
        "ffn.down": rows(output_layouts=between),
    }
    if model.shape.family == "llama":
        plan["ffn.gate"] = columns()
    if isinstance(between, Shard):
        plan |= {name: SequenceParallel(use_local_output=True) for name in ("attention_norm", "ffn_norm")}
    return plan


def _end_plan(between: Shard | Replicate) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": _Vocabulary(),
    }
    if isinstance(between, Shard):
        divided = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=between)
        plan |= {"positions": divided, "token_types": divided}
        plan |= {name: SequenceParallel(use_local_output=True) for name in ("norm", "embedding_norm")}
    return plan


def _gathered(between: Shard | Replicate, *others: None) -> ParallelStyle:
    """All tokens at the entrance: the stream is put together once for all matrices that read it."""
    return PrepareModuleInput(input_layouts=(between, *others), desired_input_layouts=(Replicate(), *others))


class _Vocabulary(ParallelStyle):
    """Cuts the output matrix, or bert's bias of it, by words; `VocabularyLoss` multiplies it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            divided = distribute_tensor(parameter, device_mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(divided))
        return module
