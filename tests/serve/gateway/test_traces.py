"""Traces and access log of requests; the collector is a real receiver of OTLP over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from windlass.http.headers import RequestHeaders
from windlass.serve.gateway.observe.access_log import AccessLog
from windlass.serve.gateway.observe.request_trace import RequestTrace, ids_of, trace_context_of
from windlass.serve.gateway.observe.traces import QUEUE, Traces, endpoint_of
from windlass.spec.errors import BadInput, StoreFailed

pytestmark = pytest.mark.slow

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATIENCE_S = 60.0


class Collector(ThreadingHTTPServer):
    """A collector that keeps the spans it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Span] = []
        self.received = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait_for(self, count: int) -> list[Span]:
        with self.received:
            assert self.received.wait_for(lambda: len(self.spans) >= count, PATIENCE_S), self.spans
            return list(self.spans)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        exported = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        collector = self.server
        assert isinstance(collector, Collector)
        with collector.received:
            for resource in exported.resource_spans:
                for scope in resource.scope_spans:
                    collector.spans += scope.spans
            collector.received.notify_all()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(ExportTraceServiceResponse().SerializeToString())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Ended:
    """A handle whose answer has arrived."""

    tokens = 7
    queued_s = 0.25
    reason = "stop"
    served_by = "tiny@3"
    replica = "engine-2"

    def __init__(self) -> None:
        self.moves = [(time.monotonic(), "failover", {"cause": "silent", "from": "engine-1"})]

    def at_first(self, call: Callable[[], None]) -> None:
        call()

    def at_end(self, call: Callable[[], None]) -> None:
        call()


def finished(headers: dict[bytes, bytes] | None = None) -> RequestTrace:
    trace = RequestTrace(RequestHeaders(list((headers or {}).items())))
    trace.route, trace.status, trace.key, trace.tenant = "/v1/completions", 200, "k1", "acme"
    trace.prepare()
    trace.follow(Ended(), 12)
    return trace


def attributes_of_span(span: Span) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_a_collector_gets_the_request_and_its_stages_as_one_trace(collector: Collector) -> None:
    traces = Traces(collector.url)
    traces.put(finished({b"traceparent": PARENT, b"x-request-id": b"mine"}), time.monotonic())
    traces.close()
    spans = collector.wait_for(6)
    request = next(span for span in spans if span.kind == Span.SPAN_KIND_SERVER)
    assert {span.trace_id.hex() for span in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    stages = [span for span in spans if span is not request]
    assert {span.name for span in stages} == {"tokenise", "admission", "queue", "prefill", "decode"}
    assert {span.parent_span_id for span in stages} == {request.span_id}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert [event.name for event in request.events] == ["failover"]
    about = attributes_of_span(request)
    assert about["gen_ai.usage.input_tokens"] == 12
    assert about["gen_ai.usage.output_tokens"] == 7
    assert about["gen_ai.request.model"] == "tiny@3"
    assert about["windlass.request_id"] == "mine"
    assert about["windlass.replica"] == "engine-2"
    queue = next(span for span in stages if span.name == "queue")
    assert queue.end_time_unix_nano - queue.start_time_unix_nano == pytest.approx(0.25e9, rel=1e-3)


def test_a_trace_that_begins_here_has_the_id_of_the_access_log(collector: Collector, tmp_path: Path) -> None:
    trace = finished()
    traces, log = Traces(collector.url), AccessLog(tmp_path / "access.jsonl")
    traces.put(trace, time.monotonic())
    log.write(trace, time.monotonic())
    traces.close()
    (line,) = (tmp_path / "access.jsonl").read_text().splitlines()
    assert {span.trace_id.hex() for span in collector.wait_for(6)} == {json.loads(line)["trace"]}


def test_a_request_to_a_gateway_is_traced_without_its_words(
    collector: Collector, engine: Any, start_gateway: Callable[..., Any]
) -> None:
    traces = Traces(collector.url)
    gateway = start_gateway(traces=traces)
    gateway.wait_until("/readyz", 200)
    engine.pause_s = 0.01
    ask = {"model": "tiny", "prompt": "the quick brown fox", "max_tokens": 5, "stream": True}
    answer = httpx.post(
        f"{gateway.url}/v1/completions", json=ask, headers={"traceparent": PARENT.decode()}, timeout=60
    )
    assert answer.status_code == 200
    traces.close()
    spans = collector.wait_for(6)
    mine = [span for span in spans if span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"]
    length_ns = {span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in mine}
    assert length_ns["decode"] >= 4 * 10e6
    request = next(span for span in mine if span.kind == Span.SPAN_KIND_SERVER)
    assert attributes_of_span(request)["gen_ai.usage.output_tokens"] == 5
    assert attributes_of_span(request)["http.route"] == "/v1/completions"
    assert b"fox" not in b"".join(span.SerializeToString() for span in spans)


def test_what_the_client_does_not_record_is_not_sent(collector: Collector) -> None:
    traces = Traces(collector.url)
    traces.put(finished({b"traceparent": PARENT[:-1] + b"0"}), time.monotonic())
    traces.put(finished(), time.monotonic())
    traces.close()
    assert not any(span.parent_span_id.hex() == "b7ad6b7169203331" for span in collector.wait_for(6))


def test_a_collector_that_is_away_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    traces = Traces("http://127.0.0.1:9")
    for _ in range(3 * QUEUE):
        traces.put(finished(), time.monotonic())
    traces.close()
    assert caplog.text == ""


def test_a_line_of_the_access_log_has_the_request_and_no_more(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "logs" / "access.jsonl")
    log.write(finished({b"authorization": b"Bearer wl-secret"}), time.monotonic())
    text = (tmp_path / "logs" / "access.jsonl").read_text()
    entry = json.loads(text)
    assert (entry["key"], entry["tenant"], entry["tokens"], entry["status"]) == ("k1", "acme", 7, 200)
    assert "secret" not in text


def test_a_full_disk_costs_lines_of_the_access_log_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(Path("/dev/full"))
    for _ in range(3):
        log.write(finished(), time.monotonic())
    assert caplog.text.count("cannot be written") == 1


def test_an_access_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="file"):
        AccessLog(tmp_path / "file" / "access.jsonl")


@pytest.mark.parametrize("sent", [b"a", b"req-1:2.3_4", b"A" * 64])
def test_a_plain_request_id_is_kept_and_made_unique_for_engines(sent: bytes) -> None:
    assert ids_of(sent)[0] == sent.decode()
    assert ids_of(sent)[1] != ids_of(sent)[1]
    assert ids_of(sent)[1].startswith(sent.decode())


@pytest.mark.parametrize("sent", [b"", b"a b", b"A" * 65, b"a\n", b"\xff", b"-x", b"<script>", b"a\x00"])
def test_any_other_request_id_is_replaced(sent: bytes) -> None:
    assert ids_of(sent)[0] not in (sent.decode("latin-1"), "")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT + b"-x",
        b"1",
    ],
)
def test_a_wrong_traceparent_begins_a_trace_of_ours(sent: bytes) -> None:
    trace, parent, sampled = trace_context_of(sent)
    assert (len(trace), parent, sampled) == (32, "", True)


def test_a_later_version_of_traceparent_may_say_more() -> None:
    assert trace_context_of(b"01" + PARENT[2:] + b"-more")[1] == "b7ad6b7169203331"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="not the URL of a collector"):
        endpoint_of("localhost:4318")
    assert endpoint_of("http://c:4318/") == "http://c:4318/v1/traces"
    assert endpoint_of("http://c:4318/other") == "http://c:4318/other"
