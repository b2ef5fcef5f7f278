"""Options by which verbs say how many processes on how many machines do a run."""

from __future__ import annotations

import argparse

from windlass.cluster.launch.rendezvous import Nodes
from windlass.spec.errors import AskedWrongly
from windlass.spec.job import Job
from windlass.spec.layout import Layout, parse_layout
from windlass.spec.protocol.link import parse_address
from windlass.spec.read import parse


def add_workers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several processes")
    group.add_argument("--workers", type=int, metavar="N", help="processes on each machine (default: 1)")
    group.add_argument(
        "--layout",
        metavar="AXIS=N,...",
        help="how they divide the work, e.g. dp=2,tp=2 (default: [layout] of the job, else dp)",
    )
    group.add_argument(
        "--restarts", type=int, default=0, metavar="N", help="start again after a crash, up to N times"
    )
    group = parser.add_argument_group(
        "workers that come and go",
        "With --elastic the run goes on when workers die, freeze, join or leave; see `windlass jobs scale`.",
    )
    group.add_argument("--elastic", action="store_true", help="go on with whatever workers there are")
    group.add_argument(
        "--spares", type=int, metavar="N", help="workers kept ready in all (default: [elastic] of the job)"
    )
    group = parser.add_argument_group(
        "several machines",
        "Give every machine the same command, each with its --node-rank, and a --home that they share. Node 0"
        " decides; whoever can reach the rendezvous can join, so keep it on a network that you trust.",
    )
    group.add_argument("--nodes", type=int, default=1, metavar="M", help="number of machines (default: 1)")
    group.add_argument(
        "--node-rank", type=int, default=0, metavar="I", help="which one this is, from 0 (default: 0)"
    )
    group.add_argument("--rendezvous", metavar="HOST:PORT", help="an address of node 0 and a free port there")
    group.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="seconds to wait for nodes (default: 60)"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a cluster",
        "With --backend the workers run where [cluster] of the job says, on as many machines as it says or"
        " --nodes asks for, and come and go as with --elastic. --home must be a directory that all share.",
    )
    group.add_argument(
        "--backend",
        choices=("local", "ray", "kubernetes"),
        help="who starts the processes (default: [cluster] backend of the job, else this command)",
    )
    group.add_argument(
        "--tenant", metavar="T", default="default", help="for whom it runs (kubernetes; default: default)"
    )
    group.add_argument(
        "--detach", action="store_true", help="return once they are asked for; --resume follows the run"
    )


def clustered(job: Job, args: argparse.Namespace) -> Job:
    """Return the job with the backend and the number of machines that the options ask for."""
    asked = {"backend": args.backend, "nodes": args.nodes if args.nodes > 1 else None}
    given = {key: value for key, value in asked.items() if value is not None}
    if job.cluster.backend is None and args.backend is None:
        if args.detach:
            raise AskedWrongly("--detach needs --backend", hint="`windlass jobs submit` does it without one")
        return job
    if args.rendezvous is not None or args.node_rank:
        raise AskedWrongly("--rendezvous and --node-rank do not go with a cluster, which knows its machines")
    cluster = {**job.cluster.model_dump(), **given}
    return parse(Job, {**job.model_dump(), "cluster": cluster}, "--backend")


def elastic_job(job: Job, args: argparse.Namespace, earlier: Layout | None) -> Job:
    """Return the job with the layout and the spares that an elastic run shall have.

    The layout says how the work is divided when all workers are there; their number may be another. A run
    that goes on keeps its own, by which it counts whose gradients are whose.
    """
    if args.restarts:
        raise AskedWrongly("--restarts does not go with --elastic, which replaces workers by itself")
    if args.workers is not None and args.workers < 1:
        raise AskedWrongly(f"--workers {args.workers}: must be at least 1")
    if args.layout is not None:
        job = laid_out(job, args.layout, None, 1)
    elif earlier is not None:
        job = job.model_copy(update={"layout": earlier})
    elif job.layout.world == 1:
        job = laid_out(job, None, args.workers, args.nodes)
    if args.spares is None:
        return job
    elastic = {**job.elastic.model_dump(), "spares": args.spares}
    return parse(Job, {**job.model_dump(), "elastic": elastic}, "--spares")


def check_served(args: argparse.Namespace, job: Job) -> None:
    """Refuse options that have no meaning for a run on parameter servers."""
    for option, given in (("--elastic", args.elastic), ("--restarts", args.restarts)):
        if given:
            raise AskedWrongly(
                f"{option} does not go with [sync] policy = 'server', which replaces whoever dies by itself"
            )
    backend = args.backend or job.cluster.backend
    if args.nodes > 1 or job.cluster.nodes > 1 or backend not in (None, "local"):
        raise AskedWrongly(
            "[sync] policy = 'server' starts its servers and workers on one machine, which they share",
            hint="leave out --nodes, --backend and [cluster], or use policy = 'local', 'timed' or 'diloco'",
        )
    if backend is not None:
        raise AskedWrongly("[sync] policy = 'server' has a supervisor of its own: leave out --backend")


def nodes_of(args: argparse.Namespace) -> Nodes:
    """Read which machine this is, or refuse what cannot be."""
    if args.restarts < 0:
        raise AskedWrongly(f"--restarts {args.restarts}: must be at least 0")
    if args.spares is not None and not args.elastic:
        raise AskedWrongly(f"--spares {args.spares} needs --elastic")
    if args.nodes < 1:
        raise AskedWrongly(f"--nodes {args.nodes}: must be at least 1")
    if not 0 <= args.node_rank < args.nodes:
        raise AskedWrongly(f"--node-rank {args.node_rank}: must be one of 0 to {args.nodes - 1}")
    if args.nodes > 1 and args.rendezvous is None:
        raise AskedWrongly(
            f"--nodes {args.nodes} needs --rendezvous HOST:PORT", hint="an address of node 0 and a free port"
        )
    if args.nodes == 1:
        return Nodes()
    parse_address(args.rendezvous)
    return Nodes(args.nodes, args.node_rank, args.rendezvous, args.patience)


def laid_out(job: Job, layout_text: str | None, workers: int | None, nodes: int) -> Job:
    """Return the job with the layout that the options ask for."""
    layout = job.layout if layout_text is None else parse_layout(layout_text, job.layout)
    if workers is not None and workers < 1:
        raise AskedWrongly(f"--workers {workers}: must be at least 1")
    world = layout.world if workers is None else workers * nodes
    if layout.world == 1 and world > 1:
        layout = Layout.model_validate({**layout.model_dump(), "dp": world})
    where = f" on {nodes} machines" if nodes > 1 else ""
    if layout.world != world:
        raise AskedWrongly(
            f"--workers {workers}{where} makes {world} processes, but layout {layout} has {layout.world}",
            hint="leave out --workers, or give a --layout whose degrees multiply to it",
        )
    if world % nodes:
        raise AskedWrongly(
            f"layout {layout} has {world} processes, which {nodes} machines cannot share equally",
            hint=f"give --workers, so many processes on each of the {nodes}",
        )
    return parse(Job, {**job.model_dump(), "layout": layout.model_dump()}, "--layout")


def repeated(args: argparse.Namespace) -> str:
    """Return the options as they were given, to be given again."""
    given = [("--workers", args.workers), ("--layout", args.layout), ("--spares", args.spares)]
    if args.backend is not None:
        given += [("--backend", args.backend), ("--nodes", args.nodes if args.nodes > 1 else None)]
    elif args.nodes > 1:
        given += [("--nodes", args.nodes), ("--node-rank", args.node_rank), ("--rendezvous", args.rendezvous)]
    elastic = " --elastic" if args.elastic else ""
    return elastic + "".join(f" {name} {value}" for name, value in given if value is not None)
