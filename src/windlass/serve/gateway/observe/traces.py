"""Traces for an OpenTelemetry collector, if asked for: finished journeys in, OTLP over HTTP out.

A thread of its own makes the spans and sends them in batches. A collector that is away costs requests
nothing: what does not fit the queue is dropped. Names and attributes are those of OpenTelemetry's
conventions for generative models; no attribute holds what was asked or answered.
"""

from __future__ import annotations

import logging
import queue
import threading
from importlib import import_module
from typing import Any

from windlass import __version__
from windlass.serve.gateway.observe.request_trace import RequestTrace
from windlass.spec.errors import BadInput

QUEUE = 4096
"""Journeys, and spans, that may wait for the collector."""
SEND_EVERY_MS = 1000
SEND_S = 5.0
LAST_SEND_S = 2.0

OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/embeddings": "embeddings",
}


class Traces:
    """Sends the traces of one gateway."""

    def __init__(self, url: str) -> None:
        self._spans = _Spans(url)
        self._journeys: queue.Queue[tuple[RequestTrace, float] | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, journey: RequestTrace, now: float) -> None:
        """Take a finished journey, unless its client does not record it or too many wait."""
        if journey.trace.sampled and not self._journeys.full():
            self._journeys.put_nowait((journey, now))

    def close(self) -> None:
        """Send what is left, but wait for it no longer than LAST_SEND_S."""
        if not self._journeys.full():
            self._journeys.put_nowait(None)
            self._thread.join(LAST_SEND_S)

    def _run(self) -> None:
        while (taken := self._journeys.get()) is not None:
            self._spans.make(*taken)
        self._spans.flush()


class _Spans:
    """The only place that knows OpenTelemetry's library."""

    def __init__(self, url: str) -> None:
        try:
            self._api = import_module("opentelemetry.trace")
            sdk = import_module("opentelemetry.sdk.trace")
            export = import_module("opentelemetry.sdk.trace.export")
            resources = import_module("opentelemetry.sdk.resources")
            otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ImportError:
            raise BadInput(
                "traces need OpenTelemetry's library, which is not installed",
                hint="pip install 'windlass[telemetry]'",
            ) from None
        # It would log every failed attempt to send; that a collector is away is seen at the collector.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._ids = sdk.RandomIdGenerator()
        about = {"service.name": "windlass", "service.version": __version__}
        self._provider = sdk.TracerProvider(
            sampler=import_module("opentelemetry.sdk.trace.sampling").ALWAYS_ON,
            id_generator=self._ids,
            resource=resources.Resource.create(about),
            shutdown_on_exit=False,
        )
        exporter = otlp.OTLPSpanExporter(endpoint=endpoint_of(url), timeout=SEND_S)
        self._provider.add_span_processor(
            export.BatchSpanProcessor(
                exporter, max_queue_size=QUEUE, schedule_delay_millis=SEND_EVERY_MS, max_export_batch_size=512
            )
        )
        self._tracer = self._provider.get_tracer("windlass.serve.gateway", __version__)

    def make(self, journey: RequestTrace, now: float) -> None:
        """Write a journey as spans: the request, and below it the stages that it passed."""
        api = self._api
        # The first span of a trace gives it the id that the access log tells.
        self._ids.generate_trace_id = lambda: int(journey.trace.id, 16)
        offset_s = journey.wall_s - journey.began_at
        request = self._tracer.start_span(
            f"{OPERATIONS.get(journey.route, 'http')} {journey.model or journey.route}",
            context=self._context(journey),
            kind=api.SpanKind.SERVER,
            start_time=_ns(journey.began_at + offset_s),
            attributes=attributes_of(journey),
        )
        if journey.status >= 500:
            request.set_status(api.Status(api.StatusCode.ERROR, journey.code))
        for at, name, details in journey.events:
            request.add_event(name, details, _ns(at + offset_s))
        below = api.set_span_in_context(request)
        for name, start, end in stages_of(journey):
            span = self._tracer.start_span(name, context=below, start_time=_ns(start + offset_s))
            span.end(_ns(end + offset_s))
        request.end(_ns(now + offset_s))

    def flush(self) -> None:
        self._provider.force_flush(int(1000 * LAST_SEND_S))

    def _context(self, journey: RequestTrace) -> Any:
        """Go on with the client's trace, if it sent one."""
        api = self._api
        if not journey.trace.parent:
            return None
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        parent = api.SpanContext(int(journey.trace.id, 16), int(journey.trace.parent, 16), True, flags)
        return api.set_span_in_context(api.NonRecordingSpan(parent))


def attributes_of(journey: RequestTrace) -> dict[str, str | int | float | list[str]]:
    """Return the attributes of a request's span; what is not known is left out."""
    told: dict[str, str | int | float | list[str]] = {
        "http.route": journey.route,
        "http.response.status_code": journey.status,
        "windlass.request_id": journey.request_id,
        "windlass.tenant": journey.tenant,
        "windlass.replica": journey.replica,
        "error.type": journey.code,
    }
    if journey.asked_at:
        told |= {
            "gen_ai.provider.name": "windlass",
            "gen_ai.operation.name": OPERATIONS.get(journey.route, ""),
            "gen_ai.request.model": journey.model,
            "gen_ai.response.finish_reasons": [journey.finish] if journey.finish else "",
            "gen_ai.usage.input_tokens": journey.prompt_tokens,
            "gen_ai.usage.output_tokens": journey.tokens,
        }
    if journey.first_at:
        told["gen_ai.server.time_to_first_token"] = journey.first_at - journey.asked_at
    return {name: value for name, value in told.items() if value != ""}


def stages_of(journey: RequestTrace) -> list[tuple[str, float, float]]:
    """Return the stages that a journey passed, each with its begin and end."""
    if not journey.asked_at:
        return []
    read_at = journey.began_at + journey.body_s
    prepared = journey.prepared_at or journey.asked_at
    stages = [("tokenise", read_at, prepared), ("admission", prepared, journey.asked_at)]
    if journey.first_at:
        began = journey.asked_at + journey.queued_s
        ended = journey.ended_at or journey.first_at
        stages += [
            ("queue", journey.asked_at, began),
            ("prefill", began, journey.first_at),
            ("decode", journey.first_at, ended),
        ]
    return [(name, start, max(start, end)) for name, start, end in stages]


def endpoint_of(url: str) -> str:
    """Return where spans go: a bare address means the collector's usual path."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise BadInput(
            f"traces = '{url}' is no address of a collector", hint="write it as http://127.0.0.1:4318"
        )
    return url if "/" in rest.rstrip("/") else f"{url.rstrip('/')}/v1/traces"


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
