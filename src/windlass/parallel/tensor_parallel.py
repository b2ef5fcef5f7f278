"""Divides heads, inner features and the vocabulary among processes (tensor parallel).

Input: a model for one device. Output: the same model, whose matrices hold their part of the features and
whose modules exchange activations where needed; its code stays as it is. Query, key, value and the first
matrices of the feed-forward part are cut by rows, the matrices after them by columns, so that one exchange
closes each pair (Shoeybi et al. 2019, arXiv:1909.08053). With sequence parallel, what lies between the
pairs (norms, residual stream) is divided by tokens instead of being held by all (Korthikanti et al. 2022,
arXiv:2205.05198).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from windlass.models.feed_forward import Experts
from windlass.models.language import LanguageModel
from windlass.spec.model.decoder import DecoderShape

NORMS = ("attention_norm", "ffn_norm", "attention_post_norm", "ffn_post_norm")


def divide_features(model: LanguageModel, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Let the processes of `mesh` hold a part of the features each."""
    between = Shard(1) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for number, block in model.layers.items():
        plan |= {
            f"layers.{number}.{name}": style for name, style in _block_plan(model, block, between).items()
        }
    present = dict(model.named_modules())
    plan |= {name: style for name, style in _end_plan(between).items() if present.get(name) is not None}
    parallelize_module(model, mesh, plan, src_data_rank=None)


def _block_plan(
    model: LanguageModel, block: nn.Module, between: Shard | Replicate
) -> dict[str, ParallelStyle]:
    """Return the style of each module of a block. Attention gets more inputs, which are not divided."""
    others = (None,) * (3 if isinstance(model.shape, DecoderShape) else 2)
    plan: dict[str, ParallelStyle] = {"attention": _Attention(between, others)}
    for name in ("attention.query", "attention.key", "attention.value"):
        plan[name] = ColwiseParallel()
    plan["attention.output"] = RowwiseParallel(output_layouts=between)
    if isinstance(model.shape, DecoderShape):
        plan |= _attention_extras(model.shape)
    ffn = block.get_submodule("ffn")
    plan |= _sparse_plan(ffn, between) if isinstance(ffn, Experts) else _dense_plan(between)
    present = dict(block.named_modules())
    if isinstance(between, Shard):
        plan |= {name: SequenceParallel(use_local_output=True) for name in NORMS}
    return {name: style for name, style in plan.items() if present.get(name) is not None}


def _dense_plan(between: Shard | Replicate) -> dict[str, ParallelStyle]:
    return {
        "ffn": _gathered(between),
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=between),
    }


def _sparse_plan(ffn: Experts, between: Shard | Replicate) -> dict[str, ParallelStyle]:
    """Divide the features of every expert. The router is whole everywhere, so all processes choose alike."""
    whole = Replicate()
    plan: dict[str, ParallelStyle] = {
        "ffn": PrepareModuleInputOutput(
            input_layouts=(between,),
            desired_input_layouts=(whole,),
            use_local_input=True,
            output_layouts=whole,
            desired_output_layouts=between,
        )
    }
    for name in (*(f"ffn.experts.{number}" for number in ffn.experts), "ffn.shared"):
        plan |= {f"{name}.gate": ColwiseParallel(), f"{name}.up": ColwiseParallel()}
        plan[f"{name}.down"] = RowwiseParallel()
    return plan


def _attention_extras(shape: DecoderShape) -> dict[str, ParallelStyle]:
    """Norms of queries and keys, and sinks, whose heads are divided."""
    plan: dict[str, ParallelStyle] = {}
    if shape.query_key_norm == "head":
        heads = SequenceParallel(sequence_dim=1, use_local_output=True)
        plan |= {"attention.query_norm": heads, "attention.key_norm": heads}
    elif shape.query_key_norm == "all":
        plan |= {"attention.query_norm": _WholeNorm(), "attention.key_norm": _WholeNorm()}
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


class _Attention(PrepareModuleInput):
    """Gathers the stream for queries, keys and values; each process has the sinks of its heads."""

    def __init__(self, between: Shard | Replicate, others: tuple[None, ...]) -> None:
        inputs = (between, *others)
        super().__init__(input_layouts=inputs, desired_input_layouts=(Replicate(), *others))

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        sinks = getattr(module, "sinks", None)
        if sinks is not None:
            divided = distribute_tensor(sinks, device_mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter("sinks", nn.Parameter(divided))
        return module


class _WholeNorm(ParallelStyle):
    """A norm over all heads, which are put together for it and divided again."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, None, self._gather, self._divide)  # type: ignore[arg-type]

    @staticmethod
    def _gather(_: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> DTensor:
        part = inputs[0]
        if not isinstance(part, DTensor):
            part = DTensor.from_local(part, mesh, [Shard(-1)], run_check=False)
        return part.redistribute(placements=[Replicate()])

    @staticmethod
    def _divide(_: nn.Module, whole: DTensor, mesh: DeviceMesh) -> Tensor:
        return whole.redistribute(placements=[Shard(-1)]).to_local()


class _Vocabulary(ParallelStyle):
    """Cuts the output matrix, or bert's bias of it, by words; `VocabularyLoss` multiplies it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            divided = distribute_tensor(parameter, device_mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(divided))
        return module
