"""The report of a chaos experiment: figures, a table of faults, and plain sentences.

The format is docs/formats/chaos.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windlass.lab.chaos.compare_runs import RunComparison
from windlass.lab.chaos.experiment import Experiment, Strike
from windlass.lab.chaos.measure import (
    FaultResponse,
    MeasuredCapacity,
    absences,
    answer_to,
    delays,
    percentile,
    positions,
    possible,
    span,
)
from windlass.lab.chaos.watch import SeenRecord
from windlass.runs.audit import LedgerAudit

FORMAT = "windlass-chaos-1"
DEADLY = ("kill", "blackout", "corrupt")
"""Kinds that kill processes; their detection time is guaranteed."""

Figures = dict[str, float | None]


@dataclass(frozen=True)
class ChaosReport:
    """The report as JSON and as text."""

    body: dict[str, Any]
    text: str

    @property
    def figures(self) -> Figures:
        figures: Figures = self.body["figures"]
        return figures

    @property
    def good(self) -> bool:
        """Whether every guarantee was kept that holds on any machine, however slow."""
        kept = not self.figures["samples_lost"] and not self.figures["samples_repeated"]
        same = self.figures["weights_identical"] == 1 or not self.body["deterministic"]
        return bool(self.body["failure"] is None and self.body["audit"]["ok"] and kept and same)


def report_on(
    *,
    run: str,
    reference: str,
    workers: int,
    spares: int,
    seed: int,
    deterministic: bool,
    experiment: Experiment,
    seen: Sequence[SeenRecord],
    capacity: MeasuredCapacity,
    unable: Mapping[str, str],
    audit: LedgerAudit,
    likeness: RunComparison | None,
    failure: str | None,
) -> ChaosReport:
    """Build the report from the observations."""
    answers = [(strike, answer_to(strike, seen)) for strike in experiment.strikes]
    kept = _kept(experiment, seen, capacity, workers, spares)
    body = {
        "format": FORMAT,
        "run": run,
        "reference": reference,
        "workers": workers,
        "spares": spares,
        "seed": seed,
        "deterministic": deterministic,
        "seconds": round(experiment.ended_s - experiment.begun_s, 3),
        "failure": failure,
        "figures": _figures(answers, kept, audit, likeness),
        "kinds": _by_kind(answers),
        "not_injected": dict(unable),
        "faults": [_fault(strike, answer, experiment) for strike, answer in answers],
        "missed": [
            {"kind": miss.scheduled.kind, "at_s": miss.scheduled.at_s, "reason": miss.reason}
            for miss in experiment.misses
        ],
        "capacity": {str(n): round(rate, 3) for n, rate in sorted(capacity.rates.items())},
        "delayed": round(capacity.delayed, 4),
        "audit": audit.facts(),
        "likeness": asdict(likeness) if likeness else None,
    }
    return ChaosReport(body, text_of(body))


def _figures(
    answers: Sequence[tuple[Strike, FaultResponse]],
    kept: Figures,
    audit: LedgerAudit,
    likeness: RunComparison | None,
) -> Figures:
    detected = [a.detection_s for s, a in answers if s.scheduled.kind in DEADLY and a.detection_s is not None]
    recovered = [a.recovery_s for _, a in answers if a.recovery_s is not None]
    unanswered = [s for s, a in answers if s.fault.interrupts and a.recovery_s is None]
    return {
        "samples_lost": audit.samples_lost,
        "samples_repeated": audit.samples_repeated,
        "weights_identical": int(likeness.weights_identical) if likeness else 0,
        "largest_weight_difference": likeness.largest_weight_difference if likeness else None,
        "largest_loss_difference": likeness.largest_loss_difference if likeness else None,
        **kept,
        "detection_p50_s": _at(detected, 0.5),
        "detection_p99_s": _at(detected, 0.99),
        "recovery_p50_s": _at(recovered, 0.5),
        "recovery_p99_s": _at(recovered, 0.99),
        "faults": len(answers),
        "unrecovered": len(unanswered),
    }


def _kept(
    experiment: Experiment, seen: Sequence[SeenRecord], capacity: MeasuredCapacity, workers: int, spares: int
) -> Figures:
    """Compare the kept samples with the capacity of the present workers, and with that of all workers."""
    found = positions(seen)
    if len(found) < 2:
        return {"throughput_kept": 0.0, "throughput_vs_calm": 0.0}
    first, last = span(found, experiment.begun_s, experiment.ended_s)
    done = last.samples - first.samples
    could = possible(
        absences(experiment, seen),
        delays(experiment),
        capacity,
        workers=workers,
        spares=spares,
        from_s=first.at_s,
        until_s=last.at_s,
    )
    calm = capacity.rates[workers] * (last.at_s - first.at_s)
    return {
        "throughput_kept": round(done / could, 4) if could else 0.0,
        "throughput_vs_calm": round(done / calm, 4) if calm else 0.0,
    }


def _by_kind(answers: Sequence[tuple[Strike, FaultResponse]]) -> dict[str, Figures]:
    kinds = sorted({strike.scheduled.kind for strike, _ in answers})
    return {kind: _of_kind([a for s, a in answers if s.scheduled.kind == kind]) for kind in kinds}


def _of_kind(answers: Sequence[FaultResponse]) -> Figures:
    detected = [a.detection_s for a in answers if a.detection_s is not None]
    recovered = [a.recovery_s for a in answers if a.recovery_s is not None]
    return {
        "faults": len(answers),
        "detection_p50_s": _at(detected, 0.5),
        "detection_p99_s": _at(detected, 0.99),
        "recovery_p50_s": _at(recovered, 0.5),
        "recovery_p99_s": _at(recovered, 0.99),
    }


def _fault(strike: Strike, answer: FaultResponse, experiment: Experiment) -> dict[str, Any]:
    return {
        "at_s": round(strike.at_s - experiment.begun_s, 3),
        "kind": strike.scheduled.kind,
        "note": strike.fault.note,
        "workers": list(strike.fault.workers),
        "nodes": list(strike.fault.nodes),
        "generation": strike.generation,
        "lasted_s": None if strike.healed_s is None else round(strike.healed_s - strike.at_s, 3),
        "detection_s": _rounded(answer.detection_s),
        "recovery_s": _rounded(answer.recovery_s),
    }


def text_of(body: Mapping[str, Any]) -> str:
    """Format the report as text."""
    figures, faults = body["figures"], body["faults"]
    lines = [
        f"Chaos: run {body['run']}, compared with the baseline {body['reference']}",
        f"{figures['faults']} faults in {body['seconds']:.0f} s on {body['workers']} workers"
        f" from seed {body['seed']}",
        *([f"FAILED: {body['failure']}"] if body["failure"] else []),
        "",
        f"{'at':>7}  {'kind':18}  {'detected':>10}  {'recovered':>10}  what",
        *(_line(fault) for fault in faults),
        "",
        f"{'kind':18}  {'faults':>6}  {'detect p99':>10}  {'recov p50':>10}  {'recov p99':>10}",
        *(_kind_line(kind, found) for kind, found in body["kinds"].items()),
        *(f"{kind:18}  {0:6}  not injected here: {reason}" for kind, reason in body["not_injected"].items()),
        "",
        *(f"{name:26} {_shown(value)}" for name, value in figures.items()),
        "",
        *(f"missed: {m['kind']} at {m['at_s']:.1f} s: {m['reason']}" for m in body["missed"]),
        *(f"audit: {reason}" for reason in body["audit"]["reasons"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _line(fault: Mapping[str, Any]) -> str:
    seen, back = _shown(fault["detection_s"], " s"), _shown(fault["recovery_s"], " s")
    return f"{fault['at_s']:6.1f}s  {fault['kind']:18}  {seen:>10}  {back:>10}  {fault['note']}"


def _kind_line(kind: str, found: Figures) -> str:
    times = (found[name] for name in ("detection_p99_s", "recovery_p50_s", "recovery_p99_s"))
    return f"{kind:18}  {found['faults']:6}  " + "  ".join(f"{_shown(t, ' s'):>10}" for t in times)


def _shown(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.4g}{unit}"


def _at(values: Sequence[float], share: float) -> float | None:
    found = percentile(values, share)
    return None if math.isnan(found) else round(found, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
