"""`windlass cluster`: show nodes, process groups and free resources; stop a group."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.cluster.backend import ClusterBackend, ClusterState, GroupStatus, Member, Node, Resources
from windlass.cluster.backends import backend_of
from windlass.spec.cluster import Cluster
from windlass.spec.errors import AskedWrongly, NotFound
from windlass.spec.read import parse, read_job
from windlass.spec.units import format_bytes, format_seconds

EPILOG = """\
Without a job file it shows this machine, with the groups of --home.

examples:
  windlass cluster show
  windlass cluster show job.toml                       the cluster in [cluster] of the job
  windlass cluster show --backend ray --address 10.0.0.1:6379 --json
  windlass cluster stop default/train-poems-1-3fa2c1   stop a group: SIGTERM, then SIGKILL
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    shown = _verb(verbs, "show", "show nodes, process groups and free resources", "cluster show --json")
    shown.add_argument("job", nargs="?", metavar="JOB", help="job file with the [cluster] to use")
    shown.add_argument("--tenant", help="only the groups of this tenant")
    shown.set_defaults(run=run_show)
    stopped = _verb(verbs, "stop", "stop a group", "cluster stop default/train-poems-1-3fa2c1")
    stopped.add_argument("group", metavar="TENANT/NAME", help="a group of `windlass cluster show`")
    stopped.add_argument("--job", metavar="JOB", help="job file with the [cluster] to use")
    stopped.add_argument(
        "--wait",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to wait until it has stopped (default: 30)",
    )
    stopped.set_defaults(run=run_stop)
    for verb in (shown, stopped):
        verb.add_argument("--backend", choices=("local", "ray", "kubernetes"), help="kind of the cluster")
        verb.add_argument("--address", help="address of the cluster, as in [cluster] address")
        verb.add_argument("--json", action="store_true", help="print JSON")
        add_home(verb)


def _verb(verbs: Any, name: str, purpose: str, example: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=f"examples:\n  windlass {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return verb


def run_show(args: argparse.Namespace) -> int:
    survey = _backend(args).survey(args.tenant)
    if args.json:
        print_json(facts_of(survey))
    else:
        _print(survey, time.time())
    return 0


def run_stop(args: argparse.Namespace) -> int:
    backend = _backend(args)
    if backend.observe(args.group) is None:
        known = [standing.group.key for standing in backend.survey().groups]
        raise NotFound(f"no group '{args.group}'", hint=f"there are: {', '.join(known)}" if known else None)
    backend.stop(args.group)
    until = time.monotonic() + args.wait
    while (gone := backend.observe(args.group) is None) is False and time.monotonic() < until:
        time.sleep(0.1)
    if args.json:
        print_json({"group": args.group, "gone": gone})
    else:
        print(f"group {args.group} is {'stopped' if gone else 'stopping'}")
    return 0


def _backend(args: argparse.Namespace) -> ClusterBackend:
    """Return the backend given by the options, else by the job."""
    cluster = read_job(args.job).cluster if args.job is not None else Cluster()
    options = {"backend": args.backend, "address": args.address}
    given = {key: value for key, value in options.items() if value is not None}
    if "address" in given and (args.backend or cluster.backend) in (None, "local"):
        raise AskedWrongly("--address needs --backend ray or kubernetes")
    return backend_of(parse(Cluster, {**cluster.model_dump(), **given}, "[cluster]"), home_of(args))


def facts_of(survey: ClusterState) -> dict[str, Any]:
    """The JSON facts about a cluster."""
    return {
        "nodes": [asdict(node) for node in survey.nodes],
        "groups": [
            {
                "group": standing.group.key,
                "module": standing.group.module,
                "count": standing.group.count,
                "resources": asdict(standing.group.resources),
                "priority": standing.group.priority,
                "stopping": standing.stopping,
                "members": [asdict(member) for member in standing.members],
            }
            for standing in survey.groups
        ],
    }


def _print(survey: ClusterState, now_s: float) -> None:
    rows = [_node_row(node) for node in survey.nodes]
    print_table(rows, ("node", "address", "is", "cores free", "memory free", "GPUs free"))
    members = [_member_row(s, member, now_s) for s in survey.groups for member in s.members]
    if members:
        print()
        print_table(members, ("group", "part", "is", "node", "for", "restarts", "why"))


def _node_row(node: Node) -> tuple[object, ...]:
    if not node.alive:
        return node.name, node.address, node.reason or "gone", "", "", ""
    return node.name, node.address, node.reason or "ready", *_free(node.free, node.total)


def _free(free: Resources, total: Resources) -> tuple[str, str, str]:
    return (
        f"{free.cores or 0:g} of {total.cores or 0:g}",
        f"{format_bytes(free.memory_bytes or 0)} of {format_bytes(total.memory_bytes or 0)}",
        f"{free.gpus} of {total.gpus}",
    )


def _member_row(standing: GroupStatus, member: Member, now_s: float) -> tuple[object, ...]:
    since = format_seconds(max(0.0, now_s - member.since_s)) if member.since_s else ""
    state = "ending" if standing.stopping else member.state
    return standing.group.key, member.index, state, member.node, since, member.restarts, member.reason
