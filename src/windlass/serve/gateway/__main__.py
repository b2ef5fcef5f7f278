"""The gateway process: `python -m windlass.serve.gateway --model DIR --name NAME --socket PATH ...`.

On standard output it writes one line of JSON: {"listening": {"url", "port"}} once it accepts connections, or
{"error": {"kind", "message", "hint"}} and exit code 2 (1 for an internal error). On SIGTERM and SIGINT
running answers get DRAIN_S to finish, new requests get 503, and the process exits with 0. It does the same
when its parent ends: when standard input closes, if that is a pipe, or when the parent process id changes.

The table [serve] comes in a file, because it may hold the password of a database, and every user of a
machine can read command lines.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import secrets
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from windlass.http.listener import bind, bounded_settings, url_of
from windlass.http.tls import check_tls
from windlass.http.transport import HttpConnections
from windlass.serve.gateway.app import build_app
from windlass.serve.gateway.bootstrap import add_served, read_models
from windlass.serve.gateway.control_client import Upstream
from windlass.serve.gateway.edge.access import Access
from windlass.serve.gateway.edge.server import GracefulServer, RunningGateway
from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.gateway.observe.access_log import AccessLog
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.observe.prompt_log import PromptLog
from windlass.serve.gateway.observe.request_observer import RequestObserver
from windlass.serve.gateway.observe.traces import Traces
from windlass.serve.gateway.service import GatewayService
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.errors import BadInput
from windlass.spec.privacy import Privacy
from windlass.spec.processes import GATEWAY
from windlass.spec.protocol.entrypoint import EntrypointParser, run_entrypoint
from windlass.spec.read import parse
from windlass.spec.serve import Serve, is_loopback
from windlass.store.database import Database

TURN_S = 0.0005
"""Python's thread switch interval. Threads that fetch leases and keys from the database take many short
turns; with the default of 5 ms for each, requests would wait too long for them."""
GARBAGE = 5_000
"""Threshold of the cyclic garbage collector: with 100,000, a collection stopped all requests for 170 ms."""


def main(argv: list[str]) -> int:
    """Serve until a signal stops the process; return the exit code."""
    args = _parse(argv)
    serve = _serve(args)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="gateway: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns about every malformed request
    check_tls(serve.tls_certificate, serve.tls_key)
    service = build_service(args, serve)
    observer = observer_of(serve, service.metrics)
    listener = bind(serve.host, serve.port, shared=serve.gateways > 1)
    server = server_of(serve, service, observer, listener)
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown; by then it must not kill.
        signal.signal(signal_, lambda *_: None)
    # Objects made so far stay for good, and requests make few cycles: collecting took a tenth of their time.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(TURN_S)
    server.run(sockets=[listener])
    observer.close()
    if service.prompts is not None:
        service.prompts.close()
    return 0


def build_service(args: argparse.Namespace, serve: Serve) -> GatewayService:
    """Load the models and open what requests need: database, limits, deadline, prompt log."""
    metrics = Metrics(args.figures, tenants=serve.tenant_figures)
    models, routing = read_models(args)
    fleet = ReplicaFleet(metrics, routing)
    database = None if serve.state is None else open_state(serve.state)
    admission = AdmissionController(
        serve.limits,
        database,
        fleet,
        metrics,
        holder=f"{args.gateway}-{secrets.token_hex(6)}",
        queue=serve.queue,
        gateways=serve.gateways,
    )
    return GatewayService(
        models,
        fleet,
        metrics,
        admission,
        database=database,
        prompts=prompts_of(serve.privacy),
        deadline_s=serve.deadline,
        price=serve.price,
        routes=routing.routes,
        supervisor_socket=args.supervisor,
        name=args.gateway,
        control=None if args.control is None else Upstream.at(args.control),
    )


def server_of(
    serve: Serve, service: GatewayService, observer: RequestObserver, listener: socket.socket
) -> GracefulServer:
    """Build the server of the app on its port."""
    access = access_of(serve, service.database, loopback=is_loopback(listener.getsockname()[0]))
    connections = HttpConnections(serve.transport)
    url = url_of(serve.host, listener, secure=serve.tls_certificate is not None)
    app = build_app(service, access, observer)
    running = RunningGateway(service.fleet, service.metrics, access, connections, url, serve.gateways > 1)
    return GracefulServer(uvicorn.Config(app, **bounded_settings(serve, connections)), running)


def prompts_of(privacy: Privacy) -> PromptLog | None:
    """Open the prompt log, if it is enabled."""
    if privacy.prompt_log is None:
        return None
    return PromptLog(privacy.prompt_log, redacted=privacy.redact, keep_s=privacy.keep_prompts)


def observer_of(serve: Serve, metrics: Metrics) -> RequestObserver:
    """Open the metrics, access log and traces that record finished requests."""
    return RequestObserver(
        metrics,
        None if serve.access_log is None else AccessLog(serve.access_log),
        None if serve.traces is None else Traces(serve.traces),
    )


def access_of(serve: Serve, database: Database | None, *, loopback: bool) -> Access:
    """Open the keys; refuse to run without keys where other machines can connect."""
    if serve.open and not loopback:
        raise BadInput(
            f"--no-keys with --host {serve.host} would let every machine on the network use this server",
            hint="remove --no-keys, or listen on 127.0.0.1",
        )
    if not serve.open and database is None:
        raise BadInput("no database of keys is configured", hint="set [serve] state, or open = true")
    keys = None if serve.open or database is None else ApiKeys(database)
    return Access(keys=keys, loopback=loopback, origins=frozenset(serve.origins))


def _serve(args: argparse.Namespace) -> Serve:
    """Read the table [serve] from its file; options on the command line take precedence."""
    data = json.loads(args.settings.read_bytes()) if args.settings is not None else {}
    given = {"host": args.host, "port": args.port, "queue": args.queue, "open": args.open or None}
    return parse(Serve, data | {key: value for key, value in given.items() if value is not None}, "serve")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog=GATEWAY, description="Serve a model over HTTP.")
    add_served(parser)
    parser.add_argument("--settings", type=Path, metavar="FILE", help="the table [serve], as JSON")
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="directory of the metrics that gateways share"
    )
    parser.add_argument("--control", type=Path, metavar="SOCKET", help="Unix socket of the control process")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, help="0 chooses a free port")
    parser.add_argument("--queue", type=int, help="maximum number of answers that wait for a slot")
    parser.add_argument("--open", action="store_true", help="serve without keys; only on loopback")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
