"""Why this layout and not the next one, in plain words.

Input: run estimates. Output: sentences. A difference between two layouts is explained by the part of the
step that makes most of it, because that is the part to change.
"""

from __future__ import annotations

from windlass.plan.cost.money import format_dollars
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.fleet.constraints import PlanLimits
from windlass.plan.fleet.run_estimate import RunEstimate
from windlass.plan.fleet.timeline import kind_of
from windlass.plan.fleet.work import TrainingWork
from windlass.spec.units import format_bytes, format_count, format_seconds

ALIKE = 0.005
"""Layouts whose times differ by less are equal."""


def explanation(work: TrainingWork, limits: PlanLimits, layouts: list[RunEstimate]) -> list[str]:
    """Explain the choice, its time by part, why not the runner-up, and what failures cost."""
    choice = layouts[0]
    sentences = [summary(work, choice), _division(choice), *_idle(work, choice), _spent(choice)]
    if len(layouts) > 1:
        sentences.append(why_not(choice, layouts[1], limits))
    sentences.append(_failing(choice))
    return sentences


def summary(work: TrainingWork, choice: RunEstimate) -> str:
    """Summarise time, money and energy."""
    low, high = (format_seconds(s) for s in choice.seconds_range)
    cost = f", {format_dollars(choice.cost.dollars)}" if choice.cost.dollars is not None else ""
    energy = f" and {format_count(choice.cost.kwh)} kWh" if choice.cost.kwh is not None else ""
    return (
        f"{format_count(work.sizes.parameters)} weights learn {format_count(work.tokens)} tokens in"
        f" {format_seconds(choice.seconds)} ({low} to {high}) on {devices_words(choice)}{cost}{energy}."
    )


def why_not(choice: RunEstimate, other: RunEstimate, limits: PlanLimits) -> str:
    """Say why the runner-up is worse."""
    name = layout_name(other)
    if devices_words(other) != devices_words(choice):
        name = f"{case_name(other.case)} on {devices_words(other)}"
    if not limits.keeps(other):
        return f"Not {name}: it does not keep to {limits.words()}."
    if limits.objective == "memory":
        more = other.memory_bytes - choice.memory_bytes
        return f"Not {name}: it needs {format_bytes(more)} more on the fullest device."
    if limits.objective == "money" and choice.dollars and other.dollars:
        return f"Not {name}: it costs {other.dollars / choice.dollars - 1:.1%} more{_because(choice, other)}."
    slower = other.seconds / choice.seconds - 1
    if slower < ALIKE:
        return f"{name} is as quick; it needs {format_bytes(other.memory_bytes)} of memory."
    return f"Not {name}: it is {slower:.1%} slower{_because(choice, other)}."


def layout_name(run: RunEstimate) -> str:
    """Name a layout as people and `--layout` say it; in a team, with the device that each is for."""
    if len(run.members) == 1:
        return case_name(run.case)
    return " and ".join(f"{case_name(m.case)} on {m.case.device.name}" for m in run.members)


def case_name(case: TrainingStep) -> str:
    """Return "dp=8,tp=8,pp=4,sharding=optimizer": axes that are not 1, and what else was chosen."""
    axes = {
        "dp": case.dp,
        "tp": case.tp,
        "pp": case.pp,
        "virtual": case.virtual,
        "cp": case.cp,
        "ep": case.ep,
    }
    named = [f"{axis}={degree}" for axis, degree in axes.items() if degree > 1]
    if case.sharding != "none":
        named.append(f"sharding={case.sharding}")
    named.append(f"micro_batch={case.micro_batch}")
    if case.recompute != "none":
        named.append(f"recompute={case.recompute_name}")
    return ",".join(named)


def devices_words(run: RunEstimate) -> str:
    return " and ".join(f"{m.case.devices} x {m.case.device.name}" for m in run.members)


def _division(choice: RunEstimate) -> str:
    sentences = []
    for member in choice.members:
        case, memory = member.case, member.estimate.memory
        limit = format_bytes(case.device.memory_bytes)
        replicas = f" for each of {case.dp} replicas" if case.dp > 1 else ""
        sentences.append(
            f"{case_name(case)}: {case.micro_batches} micro-batches a step{replicas}, in {case.precision};"
            f" the fullest {case.device.name} uses {format_bytes(memory.bytes)} (at most"
            f" {format_bytes(memory.high)}) of {limit}."
        )
    return " ".join(sentences)


def _idle(work: TrainingWork, choice: RunEstimate) -> list[str]:
    idle = sum(member.pool.devices for member in choice.members) - choice.devices
    if not idle:
        return []
    return [
        f"{idle} devices stay idle: a batch of {work.global_batch} sequences cannot be divided among all of"
        " them; another [train] batch_sequences may use them."
    ]


def _spent(choice: RunEstimate) -> str:
    shares = dict.fromkeys(("computing", "communication", "waiting"), 0.0)
    for part, seconds in choice.step.parts.items():
        shares[kind_of(part)] += float(seconds) / choice.step.seconds
    return (
        f"A step takes {format_seconds(choice.step.seconds)}: {shares['computing']:.0%} computing,"
        f" {shares['communication']:.0%} communication that nothing hides, {shares['waiting']:.0%} waiting."
    )


def _because(choice: RunEstimate, other: RunEstimate) -> str:
    """Name the part of a step that grows most."""
    mine, theirs = choice.step.parts, other.step.parts
    grown = {part: float(theirs[part]) - float(mine.get(part, 0.0)) for part in theirs}
    largest = max(grown, key=grown.__getitem__)
    if grown[largest] <= 0:
        return ""
    was, becomes = float(mine.get(largest, 0.0)), float(theirs[largest])
    return f", mostly by {largest} ({was:.2f} s of a step become {becomes:.2f} s)"


def _failing(choice: RunEstimate) -> str:
    good = choice.goodput
    failures = good.expected_failures(choice.steps * choice.step.seconds)
    return (
        f"About {failures:.1f} failures are to be expected on the way; with a checkpoint every"
        f" {format_seconds(good.interval_s)} {good.useful:.1%} of the time is useful."
    )
