"""`windlass sites replicate`: publish the models of a home to the depot, or pull them at a site."""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.cli.home import home_of
from windlass.cli.operations.sites_argument import check_site, until_stopped
from windlass.cli.terminal import print_json
from windlass.runs.progress_line import ProgressLine
from windlass.sites.replication.artifact_store import ArtifactStore, open_depot
from windlass.sites.replication.lag import SiteCopies, copies
from windlass.sites.replication.publish import Publisher
from windlass.sites.replication.puller import Puller
from windlass.sites.replication.watch import ReplicationWatch, Worker
from windlass.spec.errors import AskedWrongly
from windlass.spec.read import parse
from windlass.spec.sites import Replicate, Sites, read_sites
from windlass.spec.units import format_bytes, format_seconds

EPILOG = """\
At the home it publishes versions to the depot of [replicate]; at a site, with --site, it pulls them into the
registry there. Each version is verified byte by byte and appears atomically; interrupted transfers resume.

examples:
  windlass sites replicate sites.toml                        at the home, once
  windlass sites replicate sites.toml --watch                at the home, until stopped
  windlass sites replicate sites.toml --site east --watch    at the site called east
  windlass sites replicate sites.toml --site east --rate 20MiB --json
"""


def configure(verb: argparse.ArgumentParser) -> None:
    verb.epilog = EPILOG
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.add_argument(
        "--site", metavar="NAME", help="name of the site that this machine belongs to (default: the home)"
    )
    verb.add_argument("--watch", action="store_true", help="keep running until stopped")
    verb.add_argument("--rate", metavar="BYTES", help="transfer limit in bytes per second, e.g. 20MiB")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    sites = read_sites(args.sites)
    rule = rule_of(sites, args.rate)
    line = ProgressLine(quiet=args.json)
    worker = worker_of(args, sites, rule, line)
    if not args.watch:
        done = worker(open_depot(rule.depot, create=args.site is None)).step()
        line.close()
        print_json(done.facts()) if args.json else print(sentence(done.facts()))
        return 1 if done.facts()["refused"] else 0
    with until_stopped(at_once=True) as stopped:  # what has arrived is kept
        ReplicationWatch(
            rule, worker, lambda event: _print_event(event, args, line), stopped, create=args.site is None
        ).run()
    line.close()
    return 0


def rule_of(sites: Sites, rate: str | None = None) -> Replicate:
    """Return the required table [replicate], overridden by the options."""
    if sites.replicate is None:
        raise AskedWrongly(
            f"the sites of {sites.zone} have no [replicate]", hint='give it a depot = "s3://bucket/models"'
        )
    given = {} if rate is None else {"rate": rate}
    rule = parse(Replicate, {**sites.replicate.model_dump(), **given}, "options")
    if "://" not in rule.depot:
        rule = rule.model_copy(update={"depot": str(Path(rule.depot).expanduser().absolute())})
    return rule


def worker_of(args: argparse.Namespace, sites: Sites, rule: Replicate, line: ProgressLine) -> Worker:
    home = home_of(args)
    if args.site is None:
        return lambda depot: Publisher(home, depot, rule, report=line)
    check_site(args.site, sites)
    return lambda depot: Puller(home, depot, args.site, rule, show=line)


@contextlib.contextmanager
def publishing(home: Path, sites: Sites, tell: Any) -> Iterator[None]:
    """Publish in a background thread, if the sites have a depot."""
    if sites.replicate is None:
        yield
        return
    rule = rule_of(sites)
    stopped = threading.Event()
    watch = ReplicationWatch(rule, lambda depot: Publisher(home, depot, rule), tell, stopped, create=True)
    thread = threading.Thread(target=watch.run, name="publish", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(5.0)


def copies_of(sites: Sites) -> list[SiteCopies]:
    """Read from the depot which site has which versions."""
    depot: ArtifactStore = open_depot(rule_of(sites).depot)
    names = [site.name for site in sites.site]
    return copies(names, depot.versions(), depot.reports(), time.time())


def copies_rows(found: list[SiteCopies]) -> list[tuple[str, ...]]:
    return [
        (
            one.site,
            str(len(one.has)),
            "nothing" if not one.missing else f"{len(one.missing)} ({format_bytes(one.missing_bytes)})",
            "" if one.behind_s is None else format_seconds(one.behind_s),
            "never" if one.report_age_s is None else f"{format_seconds(one.report_age_s)} ago",
            " ".join(f"{name}@{number}" for name, meant in one.aliases.items()
                     for alias, number in meant.items() if alias == "prod"),
            one.trouble or ", ".join(f"another {version}" for version in one.different),
        )
        for one in found
    ]  # fmt: skip


COPIES = ("site", "versions", "missing", "behind for", "last report", "@prod", "trouble")


def _print_event(event: dict[str, Any], args: argparse.Namespace, line: ProgressLine) -> None:
    line.close()
    if args.json:
        print(json.dumps(event), flush=True)
    else:
        print(f"{time.strftime('%H:%M:%S')} {sentence(event)}", flush=True)


def sentence(done: dict[str, Any]) -> str:
    """Describe what a pass did, or why it failed."""
    if done.get("event") == "failed":
        return f"replication waits: {done['why']}"
    parts = [
        f"{what} {', '.join(done[what])}"
        for what in ("published", "brought", "forgotten", "removed", "missing")
        if done.get(what)
    ]
    moved = done.get("sent_bytes", done.get("fetched_bytes", 0))
    parts += [f"{format_bytes(moved)} moved"] if moved else []
    return "; ".join([*parts, *done["refused"]]) or "nothing new"
