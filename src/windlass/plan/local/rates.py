"""The time of any product, pass over memory or exchange on a machine, from its profile."""

from __future__ import annotations

import math

from windlass.plan.local.curve import CostCurve, RateTable
from windlass.plan.local.profile import ProbeSetting, Product, Profile

FORMS = ("forward_s", "inputs_s", "weights_s")


class MachineRates:
    """One process of a setting: seconds of every part of a step."""

    def __init__(self, setting: ProbeSetting) -> None:
        self.setting = setting
        self._products = [
            RateTable(
                {(p.tokens, p.inputs, p.outputs): _flops(p) / getattr(p, form) for p in setting.products}
            )
            for form in FORMS
        ]
        self._attention = RateTable(
            {(a.length,): a.heads * a.head_width * a.length**2 / a.seconds for a in setting.attentions}
        )
        self._stream = CostCurve((s.values, s.seconds) for s in setting.streams)
        self._update = CostCurve((u.weights, u.seconds) for u in setting.updates)
        self._exchange = {
            kind: CostCurve((e.bytes, e.seconds) for e in setting.exchanges if e.kind == kind)
            for kind in {e.kind for e in setting.exchanges}
        }

    def product_s(self, tokens: float, inputs: float, outputs: float) -> float:
        """A product, and the two of its backward pass."""
        flops = 2.0 * tokens * inputs * outputs
        return sum(flops / rate(tokens, inputs, outputs) for rate in self._products)

    def attention_s(self, heads: float, length: float, head_width: float) -> float:
        """Causal attention of `heads` heads, forward and backward."""
        return heads * head_width * length**2 / self._attention(length)

    def stream_s(self, values: float) -> float:
        """One pass over a tensor that reads two values and writes one."""
        return self._stream(values)

    def update_s(self, weights: float) -> float:
        return self._update(weights)

    def exchange_s(self, kind: str, size_bytes: float) -> float:
        """A collective; free on a machine where no two processes could be measured."""
        return self._exchange[kind](size_bytes) if kind in self._exchange else 0.0


def rates_for(profile: Profile, processes: int, threads: int) -> MachineRates:
    """Return those of the measured setting that is nearest to a number of processes and their threads."""

    def apart(setting: ProbeSetting) -> float:
        return abs(math.log(setting.processes / processes)) + abs(math.log(setting.threads / threads))

    possible = [s for s in profile.settings if (s.processes > 1) == (processes > 1)] or profile.settings
    return MachineRates(min(possible, key=apart))


def _flops(product: Product) -> float:
    return 2.0 * product.tokens * product.inputs * product.outputs
