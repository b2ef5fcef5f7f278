"""Other ways to meet a deadline or a budget than more machines, with what each costs in loss.

    smaller    fewer and narrower layers of the same form, as large as the limit allows (layer-wise scaling)
    shorter    the same model on fewer tokens
    stacked    progressive training: a quarter of the layers first, doubled twice on the way
    int8, int4, pruned, distilled    after training, for a server with less memory

Input: a Goal, which brings its predictions as functions. Output: Ways, the lowest loss first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from windlass.plan.cost.compress import compress, methods
from windlass.plan.cost.money import middle
from windlass.plan.cost.scaled import smaller_sizes
from windlass.plan.cost.step_config import Sizes, TrainingStep
from windlass.plan.cost.storage import served_bytes
from windlass.spec.units import format_bytes, format_count, format_seconds

Dollars = tuple[float, float]

STACKED = ((1 / 4, 0.125), (1 / 2, 0.175), (1.0, 0.7))
"""Depth and share of the steps: 50, 70 and 280 of BERT's 400 thousand (Gong et al. 2019, Efficient Training
of BERT by Progressively Stacking, ICML, section 4)."""
DISTILLED_TOKENS = 1 / 40
"""Of what training from nothing would need, for a student cut out of its teacher (Muralidharan et al. 2024,
arXiv:2407.14679)."""
FORWARD_SHARE = 1 / 3
"""Of a training step; the backward pass is twice the forward one."""


@dataclass(frozen=True)
class Goal:
    """The requested run, and predictions of alternatives."""

    case: TrainingStep
    tokens: float
    predict: Callable[[TrainingStep], float]
    """Seconds of a step."""
    cost: Callable[[float], Dollars | None]
    """Of a time in seconds on these devices."""
    loss: Callable[[float, float], float]
    """Of a number of weights after a number of tokens."""
    fits: Callable[[TrainingStep], bool]
    deadline_s: float | None = None
    budget_dollars: float | None = None

    @property
    def limit_s(self) -> float:
        """How long the devices may run, by the deadline and by the money."""
        hour = self.cost(3600.0)
        paid = math.inf
        if self.budget_dollars is not None and hour is not None and middle(hour) > 0:
            paid = self.budget_dollars / middle(hour) * 3600.0
        return min(paid, math.inf if self.deadline_s is None else self.deadline_s)

    def seconds(self, case: TrainingStep, tokens: float) -> float:
        return math.ceil(tokens / (case.global_batch * case.sequence)) * self.predict(case)


@dataclass(frozen=True)
class Way:
    """One thing to do differently."""

    way: str
    changes: dict[str, Any]
    seconds: float
    dollars: Dollars | None
    loss: float
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ways_to_meet(goal: Goal) -> list[Way]:
    """Return the ways that meet the limit, the lowest loss first; empty if none does."""
    found = [way for way in (stacked(goal), smaller(goal), shorter(goal)) if way is not None]
    return sorted((way for way in found if way.seconds <= goal.limit_s), key=lambda way: way.loss)


def ways_to_serve(goal: Goal) -> list[Way]:
    """Return ways to make the trained model smaller, the lowest loss first."""
    found = [*compressed(goal), distilled(goal)]
    return sorted((way for way in found if way is not None), key=lambda way: way.loss)


def smaller(goal: Goal) -> Way | None:
    """Return the largest model of the same form that meets the limit and fits, or None."""
    for sizes in smaller_sizes(goal.case):
        case = replace(goal.case, sizes=sizes)
        seconds = goal.seconds(case, goal.tokens)
        if seconds <= goal.limit_s and goal.fits(case):
            break
    else:
        return None
    loss = goal.loss(counted_weights(sizes), goal.tokens)
    share = sizes.parameters / goal.case.sizes.parameters
    return Way(
        "smaller",
        {"layers": sizes.layers, "width": sizes.width, "heads": sizes.heads, "ffn_width": sizes.ffn_width},
        seconds,
        goal.cost(seconds),
        loss,
        f"A model of {sizes.layers} layers and width {sizes.width} ({format_count(sizes.parameters)} weights,"
        f" {share:.0%} of the requested size) takes {format_seconds(seconds)};"
        f" {_rises(goal, loss)}.",
    )


def shorter(goal: Goal) -> Way | None:
    """Return the same model on as many tokens as the limit allows, or None if it does not fit."""
    step_s = goal.predict(goal.case)
    steps = math.floor(goal.limit_s / step_s) if goal.limit_s < math.inf else None
    tokens = goal.tokens if steps is None else min(goal.tokens, steps * _step_tokens(goal.case))
    if tokens <= 0 or not goal.fits(goal.case):
        return None
    seconds, loss = goal.seconds(goal.case, tokens), goal.loss(counted_weights(goal.case.sizes), tokens)
    return Way(
        "shorter",
        {"tokens": tokens},
        seconds,
        goal.cost(seconds),
        loss,
        f"The same model on {format_count(tokens)} tokens ({tokens / goal.tokens:.0%} of those requested)"
        f" takes {format_seconds(seconds)}; {_rises(goal, loss)}.",
    )


def stacked(goal: Goal) -> Way | None:
    """Return progressive stacking, or None if it does not fit or the layers cannot be halved.

    Its makers find the same quality after the same steps; grown fourfold at once, models of 3 and 7 billion
    weights come to the same loss with a third of the tokens saved (Du et al. 2024, arXiv:2405.15319). So the
    expected loss is that of the whole run; the worst is if tokens that a shallow model saw counted only as
    far as it was deep.
    """
    depths = stacked_depths(goal.case)
    if depths is None or not goal.fits(goal.case):
        return None
    seconds, counted = 0.0, 0.0
    for depth, (_, share) in zip(depths, STACKED, strict=True):
        case = replace(goal.case, sizes=replace(goal.case.sizes, layers=depth))
        seconds += goal.seconds(case, goal.tokens * share)
        counted += share * depth / goal.case.sizes.layers
    weights = counted_weights(goal.case.sizes)
    loss, worst = goal.loss(weights, goal.tokens), goal.loss(weights, goal.tokens * counted)
    plain = goal.seconds(goal.case, goal.tokens)
    return Way(
        "stacked",
        {"layers": depths, "shares_of_steps": [share for _, share in STACKED]},
        seconds,
        goal.cost(seconds),
        loss,
        f"Grow the model on the way by copying its layers, {' -> '.join(map(str, depths))}, after"
        f" {STACKED[0][1]:.1%} and {STACKED[0][1] + STACKED[1][1]:.0%} of the steps: it takes"
        f" {format_seconds(seconds)} instead of {format_seconds(plain)}, with about the same loss"
        f" ({loss:.2f}; at worst {worst:.2f}).",
    )


def stacked_depths(case: TrainingStep) -> list[int] | None:
    """Return the layers of each stage, which the pipeline must be able to divide, or None for few layers."""
    unit, whole = case.pp * case.virtual, case.sizes.layers
    depths = [round(whole * depth / unit) * unit for depth, _ in STACKED]
    return depths if 0 < depths[0] < depths[1] < whole else None


def compressed(goal: Goal) -> Iterator[Way]:
    """Yield the trained model in fewer bits or with zeros."""
    weights, seconds = counted_weights(goal.case.sizes), goal.seconds(goal.case, goal.tokens)
    before = goal.loss(weights, goal.tokens)
    whole = served_bytes(goal.case.sizes.parameters)
    for method in methods().values():
        found = compress(method, goal.case.sizes.parameters, goal.tokens, before)
        yield Way(
            method.name,
            {"serving_bytes": found.served_bytes},
            seconds,
            goal.cost(seconds),
            found.loss,
            f"Served with {method.how}, it takes {format_bytes(found.served_bytes)} instead of"
            f" {format_bytes(whole)}; the loss is about {found.loss:.2f} instead of {before:.2f}"
            f" ({found.low:.2f} to {found.high:.2f}; {method.source}).",
        )


def distilled(goal: Goal) -> Way | None:
    """Return a student of about half the size, cut out of the trained model and taught by it, or None.

    At best it learns as if it had seen all tokens itself, at worst as if the teacher were no help; the figure
    is half-way.
    """
    half = goal.case.sizes.parameters / 2
    sizes = next((sizes for sizes in smaller_sizes(goal.case) if sizes.parameters <= half), None)
    if sizes is None:
        return None
    taught = goal.tokens * DISTILLED_TOKENS
    student = replace(goal.case, sizes=sizes)
    teaching = FORWARD_SHARE * goal.seconds(goal.case, taught)
    seconds = goal.seconds(goal.case, goal.tokens) + goal.seconds(student, taught) + teaching
    best = goal.loss(counted_weights(sizes), goal.tokens)
    worst = goal.loss(counted_weights(sizes), taught)
    return Way(
        "distilled",
        {"layers": sizes.layers, "width": sizes.width, "tokens": taught},
        seconds,
        goal.cost(seconds),
        (best + worst) / 2,
        f"A student of {format_count(sizes.parameters)} weights, cut out of the trained model and taught by"
        f" it on {format_count(taught)} tokens, takes {format_bytes(served_bytes(sizes.parameters))} to"
        f" serve; its loss is between {best:.2f} and {worst:.2f}.",
    )


def counted_weights(sizes: Sizes) -> int:
    """Return the weights that a token meets, which the laws of loss are about."""
    idle = (sizes.layers - sizes.dense_layers) * (sizes.layer_weights - sizes.active_layer_weights)
    return sizes.parameters - idle


def _step_tokens(case: TrainingStep) -> int:
    return case.global_batch * case.sequence


def _rises(goal: Goal, loss: float) -> str:
    requested = goal.loss(counted_weights(goal.case.sizes), goal.tokens)
    return f"the expected loss is {loss:.2f} instead of {requested:.2f}"
