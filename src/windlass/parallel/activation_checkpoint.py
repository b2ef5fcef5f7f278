"""Drops activations in the forward pass and recomputes them in the backward pass.

full: each block keeps only its input. selective: results of matrix products and of attention are kept, and
what is cheap to compute (norms, activations, rotations) is done again (Korthikanti et al. 2022,
arXiv:2205.05198, section 5).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from windlass.models.language import LanguageModel

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_reduce.default,
}


def recompute_blocks(model: LanguageModel, what: Literal["none", "selective", "full"]) -> None:
    """Apply the policy to every block of the model, from outside."""
    if what == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if what == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for block in model.layers.values():
        block.forward = partial(checkpoint, block.forward, **options)


def _policy(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
