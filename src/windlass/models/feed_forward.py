"""The feed-forward part of a decoder block: one for all tokens, or experts of which a router picks some.

Legend: B batch, T time, D width, F inner width, N tokens, E experts, P experts of a token,
M tokens of an expert.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.spec.model.decoder import Activation, DecoderShape

GATE_LIMIT, GATE_STEEPNESS = 7.0, 1.702
"""Of gpt-oss (its model card, August 2025)."""


class FeedForward(nn.Module):
    """down(activation(gate) * up), or down(activation(up)) without a gate."""

    def __init__(self, shape: DecoderShape, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.activation: Activation = shape.activation
        self.gate = nn.Linear(shape.width, inner, bias=bias) if shape.gated else None
        self.up = nn.Linear(shape.width, inner, bias=bias)
        self.down = nn.Linear(inner, shape.width, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        up_BTF = self.up(x_BTD)
        if self.gate is None:
            return self.down(activate(up_BTF, self.activation))
        gate_BTF = self.gate(x_BTD)
        if self.activation == "clamped_swiglu":
            gate_BTF = gate_BTF.clamp(max=GATE_LIMIT)
            up_BTF = up_BTF.clamp(-GATE_LIMIT, GATE_LIMIT) + 1
        return self.down(activate(gate_BTF, self.activation) * up_BTF)


class Experts(nn.Module):
    """Each token goes to the experts that its router prefers, and gets the weighted sum of what they return.

    No expert has a capacity, so no token is dropped. Every expert runs in every step, if on no token at all:
    its gradient is then zero, not missing, which processes that add up gradients rely on.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.per_token, self.normalised = shape.experts_per_token, shape.normalised_experts
        self.balance_loss, self.router_z_loss = shape.balance_loss, shape.router_z_loss
        self.router_loss_scale = 1.0
        """One over the tokens of the whole batch, as the main loss is divided; see `scale_router_losses`."""
        self.router = nn.Linear(shape.width, shape.experts, bias=shape.router_bias)
        self.experts = nn.ModuleDict(
            {
                str(number): FeedForward(shape, shape.expert_width, bias=shape.expert_bias)
                for number in range(shape.experts)
            }
        )
        self.shared = (
            FeedForward(shape, shape.shared_width, bias=shape.ffn_bias) if shape.shared_width else None
        )
        self.shared_gate = nn.Linear(shape.width, 1, bias=False) if shape.shared_gate else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, -2)
        weights_NP, chosen_NP = self.route(x_ND)
        y_ND = torch.zeros_like(x_ND)
        for number, expert in self.experts.items():
            token_M, place_M = (chosen_NP == int(number)).nonzero(as_tuple=True)
            y_MD = expert(x_ND[token_M]) * weights_NP[token_M, place_M, None].to(x_ND.dtype)
            y_ND = y_ND.index_add(0, token_M, y_MD)
        if self.shared is not None:
            shared_ND = self.shared(x_ND)
            if self.shared_gate is not None:
                shared_ND = torch.sigmoid(self.shared_gate(x_ND)) * shared_ND
            y_ND = y_ND + shared_ND
        return y_ND.view_as(x_BTD)

    def route(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the numbers of the experts of each token."""
        logits_NE = self.router(x_ND).float()
        probabilities_NE = logits_NE.softmax(-1)
        weights_NP, chosen_NP = probabilities_NE.topk(self.per_token, dim=-1)
        if self.normalised:
            weights_NP = weights_NP / weights_NP.sum(-1, keepdim=True)
        if self.training and torch.is_grad_enabled() and (self.balance_loss or self.router_z_loss):
            weights_NP = _WithRouterLoss.apply(  # type: ignore[no-untyped-call]
                weights_NP,
                self._router_loss(logits_NE, probabilities_NE, chosen_NP) * self.router_loss_scale,
            )
        return weights_NP, chosen_NP

    def _router_loss(self, logits_NE: Tensor, probabilities_NE: Tensor, chosen_NP: Tensor) -> Tensor:
        """Return this layer's part of the balance and z losses, summed over tokens as the main loss is."""
        tokens, experts = logits_NE.shape
        busy_E = torch.zeros(experts, device=logits_NE.device).index_add(
            0, chosen_NP.flatten(), torch.ones(chosen_NP.numel(), device=logits_NE.device)
        )
        balance = experts * (busy_E / tokens) @ probabilities_NE.mean(0)
        z = logits_NE.logsumexp(-1).square().mean()
        return tokens * (self.balance_loss * balance + self.router_z_loss * z)


def scale_router_losses(model: nn.Module, scale: float) -> None:
    """Divide the losses of routers as the caller divides the main loss."""
    for module in model.modules():
        if isinstance(module, Experts):
            module.router_loss_scale = scale


class _WithRouterLoss(torch.autograd.Function):
    """Adds the gradient of a loss to the backward pass without adding its value to the forward pass."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones((), dtype=grads[0].dtype, device=grads[0].device)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply the nonlinearity."""
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()
        case "clamped_swiglu":
            return x * torch.sigmoid(GATE_STEEPNESS * x)
