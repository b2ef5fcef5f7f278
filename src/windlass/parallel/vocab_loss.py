"""The loss of a model whose vocabulary is divided among processes.

Each process computes the logits of its own words; across processes the softmax needs only the largest logit,
the sum of the exponentials and the logit of the target (Shoeybi et al. 2019, arXiv:1909.08053, section 3).

Legend: B batch, T time, N tokens, D width, W words of the vocabulary that this process holds.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from windlass.models.language import LanguageModel, capped
from windlass.models.loss import CHUNK_TOKENS, IGNORED


class VocabularyLoss:
    """The summed cross-entropy where each process has the logits of its own words only."""

    def __init__(self, mesh: DeviceMesh, vocabulary: int, *, sequence: bool) -> None:
        self._mesh, self._sequence = mesh, sequence
        each = -(-vocabulary // mesh.size())
        self._first = min(vocabulary, each * mesh.get_local_rank())

    def __call__(self, model: LanguageModel, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        if self._sequence:
            whole = DTensor.from_local(x_BTD, self._mesh, [Shard(1)], run_check=False)
            x_BTD = whole.redistribute(placements=[Replicate()]).to_local()
        y_ND = model.features(x_BTD.flatten(0, 1))
        # Each process has the gradient of y from its own words; the gradient of y is their sum.
        y_ND = DTensor.from_local(y_ND, self._mesh, [Replicate()], run_check=False).to_local(
            grad_placements=[Partial()]
        )
        bias = None if model.output_bias is None else _own(model.output_bias)
        loss: Tensor = _SummedLoss.apply(  # type: ignore[no-untyped-call]
            y_ND,
            _own(model.output_weight),
            bias,
            targets_BT.flatten(),
            self._first,
            self._mesh.get_group(),
            model.logit_softcap,
        )
        return loss


def repeatable_loss(model: LanguageModel, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """The loss of one process, for schedules with two backward passes: for the inputs, then for the weights.

    torch's own chunked loss allows one backward pass only.
    """
    y_ND = model.features(x_BTD.flatten(0, 1))
    loss: Tensor = _SummedLoss.apply(  # type: ignore[no-untyped-call]
        y_ND, model.output_weight, model.output_bias, targets_BT.flatten(), 0, None, model.logit_softcap
    )
    return loss


def _own(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


class _SummedLoss(torch.autograd.Function):
    """Softmax over a divided vocabulary, a chunk of tokens at a time.

    Gradients are computed along with the loss and kept instead of the scores, as torch's own
    linear_cross_entropy does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y_ND: Tensor,
        weight_WD: Tensor,
        bias_W: Tensor | None,
        targets_N: Tensor,
        first: int,
        group: dist.ProcessGroup | None,
        softcap: float | None,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        total = y_ND.new_zeros(())
        dy_ND, dweight_WD = torch.zeros_like(y_ND), torch.zeros_like(weight_WD)
        dbias_W = None if bias_W is None else torch.zeros_like(bias_W)
        for start in range(0, len(y_ND), CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            scores = capped(torch.nn.functional.linear(y_ND[rows], weight_WD, bias_W).float(), softcap)
            loss, dscores = _chunk(scores, targets_N[rows], first, group)
            if softcap is not None:
                dscores = dscores * (1 - (scores / softcap).square())
            total += loss
            if keep:
                dscores = dscores.to(y_ND.dtype)
                dy_ND[rows] = dscores @ weight_WD
                dweight_WD.addmm_(dscores.T, y_ND[rows])
                if dbias_W is not None:
                    dbias_W += dscores.sum(0)
        if keep:
            ctx.save_for_backward(dy_ND, dweight_WD, dbias_W)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy_ND, dweight_WD, dbias_W = ctx.saved_tensors
        dloss = grads[0]
        return (
            dy_ND * dloss,
            dweight_WD * dloss,
            None if dbias_W is None else dbias_W * dloss,
            None,
            None,
            None,
            None,
        )


def _chunk(
    scores_NW: Tensor, targets_N: Tensor, first: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of a chunk, and its gradient with respect to this process's logits."""
    words = scores_NW.shape[1]
    top_N = scores_NW.amax(1) if words else scores_NW.new_full((len(scores_NW),), -torch.inf)
    if group is not None:
        dist.all_reduce(top_N, dist.ReduceOp.MAX, group=group)
    scores_NW = scores_NW - top_N[:, None]
    own_N = (targets_N >= first) & (targets_N < first + words)
    column_N1 = (targets_N - first).clamp(0, max(0, words - 1))[:, None]
    exps_NW = scores_NW.exp()
    hit_N = torch.where(own_N, scores_NW.gather(1, column_N1)[:, 0], 0.0) if words else top_N * 0
    both_2N = torch.stack((exps_NW.sum(1), hit_N))
    if group is not None:
        dist.all_reduce(both_2N, group=group)
    valid_N = targets_N != IGNORED
    loss = torch.where(valid_N, both_2N[0].log() - both_2N[1], 0.0).sum()
    exps_NW /= both_2N[0][:, None]
    if words:
        exps_NW.scatter_add_(1, column_N1, -own_N[:, None].to(exps_NW.dtype))
    return loss, exps_NW * valid_N[:, None]
