"""`windlass control`: the control plane: a job queue, runs, models and plans over HTTP, and its keys."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.cli.home import add_home, home_of
from windlass.cli.serving.state_argument import duration
from windlass.cli.terminal import print_json, print_table
from windlass.cluster.backends import backend_of
from windlass.control.api.control_keys import ControlKeys
from windlass.spec.cluster import Cluster
from windlass.spec.errors import AskedWrongly
from windlass.spec.read import parse

if TYPE_CHECKING:
    from windlass.control.plane.control_plane import ControlPlaneConfig

OWNER = "owner"
EPILOG = """\
Keeps a queue of jobs (windlass jobs submit --control URL) and runs them on the --backend, by priority, quota
and fair share. Two control processes may share a --state: one leads, the other takes over within seconds.
The first start makes a key called 'owner' and prints it once. Only its digest is kept.

examples:
  windlass control                                     http://127.0.0.1:8100, jobs run on this machine
  windlass control --backend ray --address 10.0.0.1:6379 --home /shared/windlass
  windlass control --backend kubernetes --state postgresql://windlass@db/windlass
  windlass control --new-key ada --tenant ada          a key for the jobs of tenant ada only
  windlass control --new-key page --read-only          a read-only key
  windlass control --list-keys
  windlass control --drop-key page
  curl -H 'authorization: Bearer KEY' http://127.0.0.1:8100/v1/jobs
  curl -H 'authorization: Bearer KEY' http://127.0.0.1:8100/v1/jobs/poems/1/set \\
       -d '{"changes": {"train.learning_rate": 0.0001}}'
  curl -H 'authorization: Bearer KEY' http://127.0.0.1:8100/v1/plan \\
       -d '{"job": {"train": {"tokens": "300B"}}, "sizes": "Llama-3.1-8B", "fleet": "64xH100-SXM5"}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8100, help="port to listen on; 0 takes a free one (default: 8100)"
    )
    keys = parser.add_argument_group("keys").add_mutually_exclusive_group()
    keys.add_argument("--new-key", metavar="NAME", help="make a key, print it, and exit")
    keys.add_argument("--drop-key", metavar="NAME", help="revoke a key at once, and exit")
    keys.add_argument("--list-keys", action="store_true", help="list the names of keys, and exit")
    parser.add_argument("--read-only", action="store_true", help="with --new-key: the key can change nothing")
    parser.add_argument(
        "--tenant", metavar="T", help="with --new-key: the key is limited to this tenant's jobs"
    )
    _add_queue(parser)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _add_queue(parser: argparse.ArgumentParser) -> None:
    queue = parser.add_argument_group("the queue")
    queue.add_argument(
        "--backend",
        choices=("local", "ray", "kubernetes"),
        default="local",
        help="what starts the processes of jobs (default: local)",
    )
    queue.add_argument("--address", help="of the cluster: HOST:PORT of Ray, a context of the kubeconfig")
    queue.add_argument(
        "--state",
        metavar="URL",
        help="database of the queue, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        " (default: HOME/plane.db)",
    )
    queue.add_argument(
        "--min-run",
        metavar="TIME",
        default="5m",
        help="minimum run time before a job may be preempted (default: 5m)",
    )
    queue.add_argument(
        "--tenant-users",
        metavar="FIRST-LAST",
        help="unused user ids; each tenant's processes run under one of them (needs root; local and ray)",
    )
    queue.add_argument(
        "--tenant-python",
        metavar="PATH",
        default="",
        help="a Python interpreter of this version that the tenants' users can execute (default: this one)",
    )
    queue.add_argument(
        "--no-reconcile", action="store_true", help="only answer requests; never become the leader"
    )


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    keys = ControlKeys(home)
    if args.read_only and args.new_key is None:
        raise AskedWrongly("--read-only needs --new-key NAME")
    if args.tenant is not None and args.new_key is None:
        raise AskedWrongly("--tenant needs --new-key NAME")
    if args.new_key is not None:
        _print_key(
            args,
            args.new_key,
            keys.make(
                args.new_key, scopes=("read",) if args.read_only else ("read", "write"), tenant=args.tenant
            ),
        )
    elif args.drop_key is not None:
        keys.drop(args.drop_key)
        print_json({"dropped": args.drop_key}) if args.json else print(f"key '{args.drop_key}' is revoked")
    elif args.list_keys:
        _list(keys, as_json=args.json)
    else:
        _serve(args, home, keys)
    return 0


def _serve(args: argparse.Namespace, home: Path, keys: ControlKeys) -> None:
    from windlass.control.api.control_server import serve_control

    token = None if keys.list() else keys.make(OWNER)

    def listening(url: str, loopback: bool) -> None:
        if args.json:
            print_json({"url": url, "home": str(home), "key": token})
            return
        if token is not None:
            _print_key(args, OWNER, token)
        if not loopback:
            print("note: others can reach this address, and keys travel unencrypted; put TLS in front of it")
        print(f"control API for {home} at {url} (Ctrl-C stops)", flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        serve_control(home, args.host, args.port, listening, _setting(args, home))


def _setting(args: argparse.Namespace, home: Path) -> ControlPlaneConfig:
    """Return the control plane's configuration; raises if the backend is unavailable."""
    from windlass.control.plane.control_plane import ControlPlaneConfig
    from windlass.control.plane.job_store import plane_url
    from windlass.control.plane.job_to_group import groups_for
    from windlass.control.tenants.tenant_registry import TenantRegistry, users_from

    cluster = parse(Cluster, {"backend": args.backend, "address": args.address}, "--backend")
    backend_of(cluster, home)
    users = None if args.tenant_users is None else users_from(args.tenant_users)
    registry = TenantRegistry(home, users=users, python=args.tenant_python)
    registry.prepare()
    return ControlPlaneConfig(
        home=home,
        state=plane_url(home, args.state),
        backend_name=args.backend,
        connect=lambda: backend_of(cluster, home),
        group_of=registry.isolated(groups_for(home, args.backend), lambda entry: entry.tenant, args.backend),
        tenants=registry,
        min_run_s=duration(args.min_run, "--min-run"),
        reconcile=not args.no_reconcile,
    )


def _print_key(args: argparse.Namespace, name: str, token: str) -> None:
    if args.json:
        print_json({"name": name, "key": token})
    else:
        print(f"key '{name}', shown only this once: {token}")


def _list(keys: ControlKeys, *, as_json: bool) -> None:
    found = keys.list()
    if as_json:
        print_json([key.model_dump(mode="json", exclude={"sha256"}) for key in found])
        return
    rows = [(key.name, " and ".join(key.scopes), key.tenant or "all") for key in found]
    print_table(rows, ("key", "may", "tenant"))
