"""The gateway process: `python -m windlass.serve.gateway --model DIR --name NAME --socket PATH ...`.

On standard output it writes one line of JSON: {"listening": {"url", "port"}} once it accepts connections,
or {"error": {"kind", "message", "hint"}} and exit code 2 (1 if the fault is ours). SIGTERM and SIGINT let
running answers end for DRAIN_S, while what is new is sent away with 503, then exit 0. A parent that is gone
ends the process the same way: when standard input is a pipe, that is its closing; otherwise, the process
being handed to another parent.

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
from windlass.serve.gateway.bootstrap import add_served, open_service
from windlass.serve.gateway.control_client import Upstream
from windlass.serve.gateway.edge.access import Access
from windlass.serve.gateway.edge.server import GracefulServer, RunningGateway
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
"""How long a busy event loop lets the threads wait that bring leases and keys from the database: they take
many short turns, and Python's own 5 ms for each would add up to more than requests have patience for."""
GARBAGE = 5_000
"""Objects that are made, and not gone again, before cycles among them are looked for: at 100,000 a look
held everybody up for 170 ms."""


def main(argv: list[str]) -> int:
    """Serve until told to stop; return the exit code."""
    args = _parse(argv)
    serve = _serve(args)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="gateway: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every client that speaks badly
    check_tls(serve.tls_certificate, serve.tls_key)
    service = furnished(args, serve)
    witness = witness_of(serve, service.metrics)
    listener = bind(serve.host, serve.port, shared=serve.gateways > 1)
    server = server_of(serve, service, witness, listener)
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after its shutdown; by then it must not kill.
        signal.signal(signal_, lambda *_: None)
    # What is here by now stays, and little of a request is a cycle: looking for them was a tenth of its cost.
    gc.freeze()
    gc.set_threshold(GARBAGE)
    sys.setswitchinterval(TURN_S)
    server.run(sockets=[listener])
    witness.close()
    if service.prompts is not None:
        service.prompts.close()
    return 0


def furnished(args: argparse.Namespace, serve: Serve) -> GatewayService:
    """Read the models, and open what every request needs: state, limits, deadline, log of prompts."""
    service = open_service(args, Metrics(args.figures, tenants=serve.tenant_figures), queue=serve.queue)
    service.database = None if serve.state is None else open_state(serve.state)
    service.control = None if args.control is None else Upstream.at(args.control)
    service.deadline_s = serve.deadline
    service.price = serve.price
    service.prompts = prompts_of(serve.privacy)
    service.admission = AdmissionController(
        serve.limits,
        service.database,
        service.fleet.room,
        service.metrics,
        holder=f"{args.gateway}-{secrets.token_hex(6)}",
        gateways=serve.gateways,
    )
    return service


def server_of(
    serve: Serve, service: GatewayService, witness: RequestObserver, listener: socket.socket
) -> GracefulServer:
    """Put the app behind its port."""
    access = access_of(serve, service.database, loopback=is_loopback(listener.getsockname()[0]))
    connections = HttpConnections(serve.transport)
    url = url_of(serve.host, listener, secure=serve.tls_certificate is not None)
    app = build_app(service, access, witness)
    running = RunningGateway(service.fleet, service.metrics, access, connections, url, serve.gateways > 1)
    return GracefulServer(uvicorn.Config(app, **bounded_settings(serve, connections)), running)


def prompts_of(privacy: Privacy) -> PromptLog | None:
    """Open the log of prompts, if there shall be one."""
    if privacy.prompt_log is None:
        return None
    return PromptLog(privacy.prompt_log, redacted=privacy.redact, keep_s=privacy.keep_prompts)


def witness_of(serve: Serve, metrics: Metrics) -> RequestObserver:
    """Open what requests are told to at their end."""
    return RequestObserver(
        metrics,
        None if serve.access_log is None else AccessLog(serve.access_log),
        None if serve.traces is None else Traces(serve.traces),
    )


def access_of(serve: Serve, database: Database | None, *, loopback: bool) -> Access:
    """Open the keys; a gateway that other machines can reach is never without."""
    if serve.open and not loopback:
        raise BadInput(
            f"--no-keys and --host {serve.host}: whoever reaches this machine could use it",
            hint="leave --no-keys out, or listen on 127.0.0.1",
        )
    if not serve.open and database is None:
        raise BadInput("no database of keys was given", hint="give [serve] state, or open = true")
    keys = None if serve.open or database is None else ApiKeys(database)
    return Access(keys=keys, loopback=loopback, origins=frozenset(serve.origins))


def _serve(args: argparse.Namespace) -> Serve:
    """Read the table [serve] from its file; what is given on the command line as well wins."""
    data = json.loads(args.settings.read_bytes()) if args.settings is not None else {}
    given = {"host": args.host, "port": args.port, "queue": args.queue, "open": args.open or None}
    return parse(Serve, data | {key: value for key, value in given.items() if value is not None}, "serve")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog=GATEWAY, description="Serve a model over HTTP.")
    add_served(parser)
    parser.add_argument("--settings", type=Path, metavar="FILE", help="the table [serve], as JSON")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="where gateways count together")
    parser.add_argument("--control", type=Path, metavar="SOCKET", help="of the control process")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, help="0 takes any free one")
    parser.add_argument("--queue", type=int, help="answers that may wait for a slot")
    parser.add_argument("--open", action="store_true", help="answer without keys; on loopback only")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
