"""Sends finished traces to an OpenTelemetry collector, if enabled, as OTLP over HTTP.

A separate thread makes the spans and sends them in batches. If the collector is unreachable, traces that do
not fit the queue are dropped; requests are not delayed. Names and attributes follow OpenTelemetry's
conventions for generative models; no attribute holds a prompt or an answer.
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
"""Traces, and spans, that may wait for the collector."""
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
        self._finished: queue.Queue[tuple[RequestTrace, float] | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, trace: RequestTrace, now: float) -> None:
        """Queue a finished trace, unless its client does not sample it or the queue is full."""
        if trace.context.sampled and not self._finished.full():
            self._finished.put_nowait((trace, now))

    def close(self) -> None:
        """Send the queued traces, for at most LAST_SEND_S."""
        if not self._finished.full():
            self._finished.put_nowait(None)
            self._thread.join(LAST_SEND_S)

    def _run(self) -> None:
        while (taken := self._finished.get()) is not None:
            self._spans.make(*taken)
        self._spans.flush()


class _Spans:
    """The only class that uses OpenTelemetry's library."""

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
        # It would log every failed attempt to send.
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

    def make(self, trace: RequestTrace, now: float) -> None:
        """Write a trace as spans: the request, and below it its stages."""
        api = self._api
        # The first span of a trace gets the trace id that the access log shows.
        self._ids.generate_trace_id = lambda: int(trace.context.id, 16)
        offset_s = trace.wall_s - trace.began_at
        request = self._tracer.start_span(
            f"{OPERATIONS.get(trace.route, 'http')} {trace.model or trace.route}",
            context=self._context(trace),
            kind=api.SpanKind.SERVER,
            start_time=_ns(trace.began_at + offset_s),
            attributes=attributes_of(trace),
        )
        if trace.status >= 500:
            request.set_status(api.Status(api.StatusCode.ERROR, trace.code))
        for at, name, details in trace.events:
            request.add_event(name, details, _ns(at + offset_s))
        below = api.set_span_in_context(request)
        for name, start, end in stages_of(trace):
            span = self._tracer.start_span(name, context=below, start_time=_ns(start + offset_s))
            span.end(_ns(end + offset_s))
        request.end(_ns(now + offset_s))

    def flush(self) -> None:
        self._provider.force_flush(int(1000 * LAST_SEND_S))

    def _context(self, trace: RequestTrace) -> Any:
        """Return the client's span as parent, if it sent one."""
        api = self._api
        if not trace.context.parent:
            return None
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        parent = api.SpanContext(int(trace.context.id, 16), int(trace.context.parent, 16), True, flags)
        return api.set_span_in_context(api.NonRecordingSpan(parent))


def attributes_of(trace: RequestTrace) -> dict[str, str | int | float | list[str]]:
    """Return the attributes of a request's span, without unknown values."""
    attributes: dict[str, str | int | float | list[str]] = {
        "http.route": trace.route,
        "http.response.status_code": trace.status,
        "windlass.request_id": trace.request_id,
        "windlass.tenant": trace.tenant,
        "windlass.replica": trace.replica,
        "error.type": trace.code,
    }
    if trace.submitted_at:
        attributes |= {
            "gen_ai.provider.name": "windlass",
            "gen_ai.operation.name": OPERATIONS.get(trace.route, ""),
            "gen_ai.request.model": trace.model,
            "gen_ai.response.finish_reasons": [trace.finish] if trace.finish else "",
            "gen_ai.usage.input_tokens": trace.prompt_tokens,
            "gen_ai.usage.output_tokens": trace.tokens,
        }
    if trace.first_at:
        attributes["gen_ai.server.time_to_first_token"] = trace.first_at - trace.submitted_at
    return {name: value for name, value in attributes.items() if value != ""}


def stages_of(trace: RequestTrace) -> list[tuple[str, float, float]]:
    """Return the stages of a trace, each with its begin and end."""
    if not trace.submitted_at:
        return []
    read_at = trace.began_at + trace.body_s
    prepared = trace.prepared_at or trace.submitted_at
    stages = [("tokenise", read_at, prepared), ("admission", prepared, trace.submitted_at)]
    if trace.first_at:
        began = trace.submitted_at + trace.queued_s
        ended = trace.ended_at or trace.first_at
        stages += [
            ("queue", trace.submitted_at, began),
            ("prefill", began, trace.first_at),
            ("decode", trace.first_at, ended),
        ]
    return [(name, start, max(start, end)) for name, start, end in stages]


def endpoint_of(url: str) -> str:
    """Return the URL for spans: a bare address gets the collector's default path."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise BadInput(
            f"traces = '{url}' is not the URL of a collector", hint="write it as http://127.0.0.1:4318"
        )
    return url if "/" in rest.rstrip("/") else f"{url.rstrip('/')}/v1/traces"


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
