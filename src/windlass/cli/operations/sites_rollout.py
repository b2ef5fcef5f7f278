"""`windlass sites rollout`: roll a version out site by site, and roll it back where it fails."""

from __future__ import annotations

import argparse
import time
from typing import Any

from windlass.cli.operations.sites_argument import folder_of, until_stopped
from windlass.cli.operations.sites_replicate import rule_of
from windlass.cli.serving.state_argument import when
from windlass.cli.terminal import print_json, print_table
from windlass.runs.progress_line import ProgressLine
from windlass.sites.replication.artifact_store import ArtifactStore, open_depot
from windlass.sites.rollout.rollout_record import SitesRolloutRecord, all_names, load
from windlass.sites.rollout.start import give_up, opened, preview
from windlass.spec.errors import AskedWrongly, NotFound
from windlass.spec.read import parse
from windlass.spec.sites import Sites, SitesRollout, read_sites

EPILOG = """\
Each site waits for its copy, is drained if [rollout] says so, rolls the version out itself (a growing share
of its requests, evaluated throughout) and then answers golden prompts for a while; only then does the next
site start. A site that fails is rolled back, and later ones are not touched. An interrupted roll-out
continues with the same command.

examples:
  windlass sites rollout sites.toml poems@4 --dry-run       health of every site, and the order
  windlass sites rollout sites.toml poems@4
  windlass sites rollout sites.toml poems@4 --on-failure back    on failure, roll earlier sites back, too
  windlass sites rollout sites.toml poems --status --json
  windlass sites rollout sites.toml poems --give-up         end an abandoned roll-out

The key is read from $WINDLASS_KEY, or from the variable that a site's key_variable names; it needs the scope
admin.
"""
LOOK_EVERY_S = 0.5


def configure(verb: argparse.ArgumentParser) -> None:
    verb.epilog = EPILOG
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.add_argument(
        "model", metavar="MODEL", nargs="?", help="NAME@VERSION; NAME for --status and --give-up"
    )
    what = verb.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="show the health of the sites; change nothing")
    what.add_argument("--status", action="store_true", help="show its progress")
    what.add_argument("--give-up", action="store_true", help="end the roll-out; sites stay as they are")
    verb.add_argument("--on-failure", choices=("stop", "back"), help="stop, or roll earlier sites back, too")
    verb.add_argument("--at-once", type=int, metavar="N", help="max sites at a time, after the first")
    verb.add_argument(
        "--settle", metavar="TIME", help="how long golden prompts must be answered correctly (default: 60s)"
    )
    verb.add_argument(
        "--wait", metavar="TIME", help="timeout for copies and for unreachable sites (default: 1h)"
    )
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    sites = _with_options(read_sites(args.sites), args)
    depot = open_depot(rule_of(sites).depot)
    if args.status:
        return _status(args, depot)
    if args.model is None:
        raise AskedWrongly("no version given", hint="windlass sites rollout SITES.toml NAME@VERSION")
    if args.give_up:
        return _print(args, give_up(depot, args.model.partition("@")[0], sites.zone, time.time))
    if args.dry_run:
        return _preview(args, sites, depot)
    return _drive(args, sites, depot)


def _drive(args: argparse.Namespace, sites: Sites, depot: ArtifactStore) -> int:
    """Advance the roll-out until it ends or this process is stopped; finished steps are kept."""
    line, shown, over = ProgressLine(quiet=args.json), dict[str, str](), False
    back = sites.rollout.on_failure == "back"
    with (
        until_stopped() as stopped,
        opened(sites, depot, args.model, folder_of(args, sites), back=back, clock=time.time) as driver,
    ):
        while not over and not stopped.is_set():
            over = driver.step(time.time())
            for site, text in _site_texts(driver.record).items():
                if shown.get(site) != text:
                    shown[site] = text
                    line.say(f"{time.strftime('%H:%M:%S')} {site}: {text}")
            if not over:
                stopped.wait(LOOK_EVERY_S)
    line.close()
    if not over:
        line.say("interrupted; run the same command again to continue")
    return _print(args, driver.record, failure=driver.record.state != "done")


def _status(args: argparse.Namespace, depot: ArtifactStore) -> int:
    names = [args.model.partition("@")[0]] if args.model else all_names(depot)
    found = [record for name in names if (record := load(depot, name)) is not None]
    if args.model and not found:
        raise NotFound(
            f"{names[0]} was never rolled out over sites", hint=", ".join(all_names(depot)) or None
        )
    if args.json:
        print_json([record.facts() for record in found])
        return 0
    if not found:
        print("nothing was rolled out over sites yet")
    for record in found:
        _print(args, record)
    return 0


def _preview(args: argparse.Namespace, sites: Sites, depot: ArtifactStore) -> int:
    rows = preview(sites, depot, args.model, folder_of(args, sites))
    if args.json:
        print_json({"model": args.model, "sites": rows})
    else:
        shown = [
            (row["site"], "yes" if row["copy"] else "not yet", row["serves"] or "?",
             "yes" if row["well"] else "no", row["why"])
            for row in rows
        ]  # fmt: skip
        print_table(shown, ("site", "has its copy", "serves", "well", "why"))
    return 0


def _print(args: argparse.Namespace, record: SitesRolloutRecord, *, failure: bool = False) -> int:
    if args.json:
        print_json(record.facts())
    else:
        print(f"{record.model}: {record.state}{f': {record.reason}' if record.reason else ''}")
        rows = [
            (name, record.sites[name].phase, when(record.sites[name].since_s), record.sites[name].why)
            for name in record.order
        ]
        print_table(rows, ("site", "state", "since", "why"))
    return 1 if failure else 0


def _site_texts(record: SitesRolloutRecord) -> dict[str, str]:
    return {
        site: f"{turn.phase}{f' ({turn.why})' if turn.why else ''}" for site, turn in record.sites.items()
    }


def _with_options(sites: Sites, args: argparse.Namespace) -> Sites:
    """Override the table [rollout] by the options."""
    names = ("on_failure", "at_once", "settle", "wait")
    given: dict[str, Any] = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
    plan = parse(SitesRollout, {**sites.rollout.model_dump(), **given}, "options")
    return sites.model_copy(update={"rollout": plan})
