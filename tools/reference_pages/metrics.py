"""docs/reference/metrics.md: every figure of /metrics, from the boards that count them."""

from __future__ import annotations

from reference_pages.markdown import code, head, table, whole
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.metrics.series import MAX_SERIES, OTHER, Figure
from windlass.supervisor.supervisor_metrics import ServiceMetrics


def page() -> str:
    """Return the page."""
    figures = [*Metrics(tenants=True).registry.figures, *ServiceMetrics().registry.figures]
    lines = head(
        "Figures of a service",
        "What `GET /metrics` (scope `metrics`) tells in Prometheus' text, for all gateways of a service."
        f" A figure has at most {MAX_SERIES} series in a process; what comes later is counted as `{OTHER}`."
        " `windlass_tenant_tokens_total` is there only with `[serve] tenant_figures = true`.",
        "[Observability](../service.md#observability) says what to look at, and has a dashboard and alerts.",
    )
    lines += table(
        ("figure", "kind", "labels", "meaning"),
        (_row(figure) for figure in sorted(figures, key=lambda f: f.name)),
    )
    lines += ["## Buckets", "", "Upper bounds of the histograms, in seconds; one more has no bound.", ""]
    histograms = (figure for figure in figures if figure.kind == "histogram")
    lines += table(
        ("histogram", "bounds"), ((code(f.name), ", ".join(f"{b:g}" for b in f.bounds)) for f in histograms)
    )
    return whole(lines)


def _row(figure: Figure) -> tuple[str, str, str, str]:
    name = f"{figure.name}_total" if figure.kind == "counter" else figure.name
    return code(name), figure.kind, ", ".join(figure.labels), figure.help
