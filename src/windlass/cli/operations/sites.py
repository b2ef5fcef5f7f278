"""`windlass sites`: one DNS name for several sites; clients are sent to the nearest healthy one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.operations import sites_replicate, sites_rollout
from windlass.cli.operations.sites_argument import check_site, folder_of, standing_of
from windlass.cli.operations.sites_replicate import COPIES, copies_of, copies_rows, publishing
from windlass.cli.terminal import print_json, print_table
from windlass.spec.errors import AskedWrongly, NotFound
from windlass.spec.sites import Sites, read_sites

EPILOG = """\
A small DNS server for one zone that answers with the addresses of the nearest healthy site: one that answers
golden prompts correctly and in time. Delegate the zone to it by an NS record in the parent zone.

examples:
  windlass sites serve sites.toml                      on 127.0.0.1:5353
  windlass sites serve sites.toml --host 0.0.0.0 --port 53
  windlass sites show sites.toml
  windlass sites drain sites.toml east --wait          send no new clients there, and wait until it is drained
  windlass sites restore sites.toml east
  windlass sites replicate sites.toml --watch          publish the models of this home to the depot
  windlass sites replicate sites.toml --site east --watch    ... and pull them at the site east
  windlass sites rollout sites.toml poems@4            roll it out site by site, the canary first
  dig @127.0.0.1 -p 5353 llm.example.org +subnet=10.1.0.0/24

The key for golden prompts is read from $WINDLASS_KEY, or from the variable that a site's key_variable names.
docs/formats/sites.md describes the file.
"""
POLL_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    serve = _described(verbs, "serve", "run the DNS server of the zone, and probe its sites", run_serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument(
        "--port", type=int, default=5353, help="UDP and TCP; 0 takes a free one (default: 5353)"
    )
    serve.add_argument(
        "--no-replicate", dest="replicate", action="store_false",
        help="do not publish the models of this home to the depot",
    )  # fmt: skip
    _described(verbs, "show", "show the health of the sites, and their model versions", run_show)
    copy = _described(verbs, "replicate", "replicate models to every site", sites_replicate.run)
    sites_replicate.configure(copy)
    rollout = _described(verbs, "rollout", "roll a version out site by site", sites_rollout.run)
    sites_rollout.configure(rollout)
    for name, purpose, action in (
        ("drain", "send no new clients to a site", run_drain),
        ("restore", "send clients to a site again", run_restore),
    ):
        verb = _described(verbs, name, purpose, action)
        verb.add_argument("site", metavar="SITE", help="its name")
        if name == "drain":
            verb.add_argument(
                "--wait", action="store_true", help="wait until no client is sent there any more"
            )


def _described(verbs: Any, name: str, purpose: str, action: Any) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=purpose)
    verb.add_argument("sites", metavar="SITES.toml", type=Path, help="the zone and its sites")
    add_home(verb)
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=action)
    return verb


def run_serve(args: argparse.Namespace) -> int:
    sites = read_sites(args.sites)
    try:
        from windlass.sites.dns.dns_server import SitesServer
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dns"):
            raise
        raise AskedWrongly(
            "sites needs dnspython, which is not installed", hint="pip install 'windlass[sites]'"
        ) from None

    def tell(event: dict[str, Any]) -> None:
        if args.json:
            print(json.dumps(event), flush=True)
        else:
            print(f"{time.strftime('%H:%M:%S')} {_sentence(event)}", flush=True)

    def ready(port: int) -> None:
        if args.json:
            event = {"event": "ready", "zone": sites.zone, "host": args.host, "port": port}
            print(json.dumps(event), flush=True)
        else:
            print(f"answering for {sites.zone} on {args.host}:{port}; Ctrl-C ends it", flush=True)

    server = SitesServer(sites, folder_of(args, sites), tell)

    async def until_stopped() -> None:
        serving = asyncio.ensure_future(server.run(args.host, args.port, ready))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    with publishing(home_of(args), sites, tell) if args.replicate else contextlib.nullcontext():
        asyncio.run(until_stopped())
    return 0


def _sentence(event: dict[str, Any]) -> str:
    if event["event"] != "site":
        return sites_replicate.sentence(event)
    return f"{event['site']} is {event['state']}" + (f" ({event['why']})" if event["why"] else "")


def run_show(args: argparse.Namespace) -> int:
    """Print the health of the sites and their model versions; if only one of the two is known, print that."""
    sites, found = read_sites(args.sites), None
    try:
        facts = standing_of(folder_of(args, sites), sites)
    except NotFound:
        if sites.replicate is None:
            raise
        facts = {"zone": sites.zone, "sites": []}
    if sites.replicate is not None:
        found = copies_of(sites)
        facts["copies"] = [one.facts() for one in found]
    if args.json:
        print_json(facts)
        return 0
    rows = [(row["site"], row["state"], f"{row['took_ms']} ms", row["why"]) for row in facts["sites"]]
    if rows:
        print_table(rows, ("site", "state", "answers in", "why"))
    if found is not None:
        print_table(copies_rows(found), COPIES)
    return 0


def run_drain(args: argparse.Namespace) -> int:
    sites = read_sites(args.sites)
    folder, others = folder_of(args, sites), [s.name for s in sites.site if s.name != args.site]
    check_site(args.site, sites)
    if not others:
        raise AskedWrongly(f"{args.site} is the only site; clients cannot be sent elsewhere")
    (folder / "drain").mkdir(parents=True, exist_ok=True)
    (folder / "drain" / args.site).touch()
    while args.wait and _state(folder, sites, args.site) != "withdrawn":
        time.sleep(POLL_S)
    return _say(args, "withdrawn" if args.wait else "draining")


def run_restore(args: argparse.Namespace) -> int:
    sites = read_sites(args.sites)
    check_site(args.site, sites)
    (folder_of(args, sites) / "drain" / args.site).unlink(missing_ok=True)
    return _say(args, "restored")


def _say(args: argparse.Namespace, what: str) -> int:
    print_json({"site": args.site, "state": what}) if args.json else print(f"{args.site} is {what}")
    return 0


def _state(folder: Path, sites: Sites, name: str) -> str:
    rows = standing_of(folder, sites)["sites"]
    return str(next(row["state"] for row in rows if row["site"] == name))
