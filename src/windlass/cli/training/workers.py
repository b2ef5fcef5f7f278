"""The options for the processes and nodes of a run, shared by several verbs."""

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
        help="the parallel layout, e.g. dp=2,tp=2 (default: [layout] of the job, else dp)",
    )
    group.add_argument(
        "--restarts", type=int, default=0, metavar="N", help="restart after a crash, up to N times"
    )
    group = parser.add_argument_group(
        "elastic training",
        "With --elastic the run survives workers that die, freeze, join or leave; see `windlass jobs scale`.",
    )
    group.add_argument("--elastic", action="store_true", help="tolerate failed, joining and leaving workers")
    group.add_argument(
        "--spares", type=int, metavar="N", help="hot spare workers in total (default: [elastic] of the job)"
    )
    group = parser.add_argument_group(
        "several machines",
        "Give every machine the same command, each with its --node-rank, and a --home that they share. Node 0"
        " leads; any process that reaches the rendezvous can join, so keep it on a trusted network.",
    )
    group.add_argument("--nodes", type=int, default=1, metavar="M", help="number of machines (default: 1)")
    group.add_argument(
        "--node-rank", type=int, default=0, metavar="I", help="rank of this machine, from 0 (default: 0)"
    )
    group.add_argument("--rendezvous", metavar="HOST:PORT", help="an address of node 0 and a free port there")
    group.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="seconds to wait for nodes (default: 60)"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a cluster",
        "With --backend the workers run on the cluster in [cluster] of the job, on the number of nodes given"
        " there or by --nodes, as with --elastic. --home must be a directory that all nodes share.",
    )
    group.add_argument(
        "--backend",
        choices=("local", "ray", "kubernetes"),
        help="what starts the processes (default: [cluster] backend of the job, else this command)",
    )
    group.add_argument(
        "--tenant",
        metavar="T",
        default="default",
        help="tenant that owns the run (kubernetes; default: default)",
    )
    group.add_argument(
        "--detach",
        action="store_true",
        help="return once the processes are requested; --resume follows the run",
    )


def clustered(job: Job, args: argparse.Namespace) -> Job:
    """Return the job with the backend and the number of nodes from the options."""
    options = {"backend": args.backend, "nodes": args.nodes if args.nodes > 1 else None}
    given = {key: value for key, value in options.items() if value is not None}
    if job.cluster.backend is None and args.backend is None:
        if args.detach:
            raise AskedWrongly("--detach needs --backend", hint="without one, use `windlass jobs submit`")
        return job
    if args.rendezvous is not None or args.node_rank:
        raise AskedWrongly(
            "--rendezvous and --node-rank cannot be used with a cluster, which places the processes itself"
        )
    cluster = {**job.cluster.model_dump(), **given}
    return parse(Job, {**job.model_dump(), "cluster": cluster}, "--backend")


def elastic_job(job: Job, args: argparse.Namespace, earlier: Layout | None) -> Job:
    """Return the job with the layout and the spares of an elastic run.

    The layout says how the work is divided when all workers are present; their number may differ. A resumed
    run keeps its layout, which assigns the gradients to ranks.
    """
    if args.restarts:
        raise AskedWrongly("--restarts cannot be used with --elastic, which replaces failed workers itself")
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
    """Refuse options that do not apply to a run on parameter servers."""
    for option, given in (("--elastic", args.elastic), ("--restarts", args.restarts)):
        if given:
            raise AskedWrongly(
                f"{option} cannot be used with [sync] policy = 'server', which replaces the dead itself"
            )
    backend = args.backend or job.cluster.backend
    if args.nodes > 1 or job.cluster.nodes > 1 or backend not in (None, "local"):
        raise AskedWrongly(
            "[sync] policy = 'server' starts its servers and workers on one machine, which they share",
            hint="leave out --nodes, --backend and [cluster], or use policy = 'local', 'timed' or 'diloco'",
        )
    if backend is not None:
        raise AskedWrongly("[sync] policy = 'server' has its own supervisor: leave out --backend")


def nodes_of(args: argparse.Namespace) -> Nodes:
    """Read the options about nodes, or refuse invalid ones."""
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
    """Return the job with the layout from the options."""
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
            hint=f"give --workers, the processes on each of the {nodes} machines",
        )
    return parse(Job, {**job.model_dump(), "layout": layout.model_dump()}, "--layout")


def repeated(args: argparse.Namespace) -> str:
    """Return the given options, to repeat them in a command."""
    given = [("--workers", args.workers), ("--layout", args.layout), ("--spares", args.spares)]
    if args.backend is not None:
        given += [("--backend", args.backend), ("--nodes", args.nodes if args.nodes > 1 else None)]
    elif args.nodes > 1:
        given += [("--nodes", args.nodes), ("--node-rank", args.node_rank), ("--rendezvous", args.rendezvous)]
    elastic = " --elastic" if args.elastic else ""
    return elastic + "".join(f" {name} {value}" for name, value in given if value is not None)
