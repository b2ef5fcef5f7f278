"""`windlass keys`: make, list, show, limit, rotate and revoke the API keys of a service."""

from __future__ import annotations

import argparse
import time
from datetime import datetime

from windlass.cli.serving.state_argument import (
    add_limits,
    described,
    duration,
    limits_of,
    limits_text,
    opened_state,
    person,
    when,
)
from windlass.cli.terminal import print_json, print_table
from windlass.serve.records.keys import SCOPES, ApiKey, ApiKeys
from windlass.spec.errors import AskedWrongly
from windlass.spec.tenancy import DEFAULT
from windlass.spec.units import format_seconds

EPILOG = """\
A key is shown once, when it is made; only its digest is stored. Changes take effect at once in every gateway.

examples:
  windlass keys make ada                                may use the models
  windlass keys make ops --scope admin --scope metrics --expires 90d
  windlass keys make app --tenant acme --limit requests_per_second=5 --limit tokens_per_day=1M
  windlass keys list --all
  windlass keys rotate ada --grace 1h                   a new token; the old one works for an hour
  windlass keys revoke ada
  windlass keys list --state postgresql://windlass@db.local/service
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    _configure_make(described(verbs, "make", "make a key and print it once", ["keys make ada --expires 30d"]))
    listed = described(verbs, "list", "list keys", ["keys list", "keys list --tenant acme --all --json"])
    listed.add_argument("--tenant", help="only keys of this tenant")
    listed.add_argument("--all", action="store_true", help="include revoked keys")
    listed.set_defaults(run=run_list)
    limited = described(
        verbs,
        "limit",
        "set the limits of a key",
        ["keys limit ada --limit concurrent=2", "keys limit ada --no-limits"],
    )
    add_limits(limited)
    rotated = described(verbs, "rotate", "replace the token of a key", ["keys rotate ada --grace 1h"])
    rotated.add_argument("--grace", metavar="TIME", default="0s", help="how long the old token still works")
    shown = described(verbs, "show", "show a key, and whether it is active", ["keys show ada"])
    revoked = described(verbs, "revoke", "revoke a key at once", ["keys revoke ada"])
    for verb, action in (
        (limited, run_limit),
        (rotated, run_rotate),
        (shown, run_show),
        (revoked, run_revoke),
    ):
        verb.add_argument("name", metavar="KEY", help="its name or id")
        verb.set_defaults(run=action)


def _configure_make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the key: a-z, 0-9, '.', '_' and '-'")
    parser.add_argument("--tenant", default=DEFAULT, help=f"tenant that owns the key (default: {DEFAULT})")
    parser.add_argument(
        "--scope",
        dest="scopes",
        metavar="SCOPE",
        action="append",
        help=f"{', '.join(SCOPES)} (may be repeated; default: use)",
    )
    parser.add_argument("--expires", metavar="WHEN", help="after a time (30d) or on a day (2027-01-31)")
    add_limits(parser)
    parser.set_defaults(run=run_make)


def run_make(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        key, token = ApiKeys(state).make(
            args.name,
            person(),
            tenant=args.tenant,
            scopes=args.scopes or ("use",),
            expires_s=_expiry(args.expires),
            limits=limits_of(args),
        )
    return _print_token(args, key, token)


def run_list(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        found = ApiKeys(state).list()
    keys = [key for key in found if args.tenant in (None, key.tenant) and (args.all or key.revoked_s is None)]
    now_s = time.time()
    if args.json:
        print_json([key.facts(now_s) for key in keys])
    elif not keys:
        print("no keys yet; `windlass keys make NAME` makes one")
    else:
        rows = [
            (
                k.name,
                k.id,
                k.tenant,
                " ".join(k.scopes),
                when(k.made_s),
                k.refusal(now_s) or when(k.expires_s),
            )
            for k in keys
        ]
        print_table(rows, ("key", "id", "tenant", "scopes", "made", "expires"))
    return 0


def run_show(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        key = ApiKeys(state).get(args.name)
    return _print_key(args, key)


def run_limit(args: argparse.Namespace) -> int:
    limits = limits_of(args)
    if limits is None:
        raise AskedWrongly("no limits given", hint="--limit NAME=VALUE, or --no-limits")
    with opened_state(args) as state:
        key = ApiKeys(state).limit(args.name, None if args.no_limits else limits, person())
    return _print_key(args, key)


def run_revoke(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        key = ApiKeys(state).revoke(args.name, person())
    if args.json:
        print_json(key.facts(time.time()))
    else:
        print(f"key '{key.name}' ({key.id}) is revoked")
    return 0


def run_rotate(args: argparse.Namespace) -> int:
    grace_s = duration(args.grace, "--grace")
    with opened_state(args) as state:
        key, token = ApiKeys(state).rotate(args.name, person(), grace_s=grace_s)
    if grace_s and not args.json:
        print(f"the old token works for another {format_seconds(grace_s)}")
    return _print_token(args, key, token)


def _print_key(args: argparse.Namespace, key: ApiKey) -> int:
    facts = key.facts(time.time())
    if args.json:
        print_json(facts)
        return 0
    shown = facts | {
        "scopes": " ".join(key.scopes),
        "made_s": when(key.made_s),
        "expires_s": when(key.expires_s),
        "revoked_s": when(key.revoked_s),
        "limits": limits_text(key.limits),
        "refused": facts["refused"] or "no",
    }
    print_table(
        [(name.removesuffix("_s"), value) for name, value in shown.items() if value], ("what", "value")
    )
    return 0


def _print_token(args: argparse.Namespace, key: ApiKey, token: str) -> int:
    if args.json:
        print_json({**key.facts(time.time()), "key": token})
    else:
        print(f"key '{key.name}' ({key.id}), shown only this once: {token}")
    return 0


def _expiry(text: str | None) -> float | None:
    """Parse the expiry of a key: a duration from now, or a day in local time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return time.time() + duration(text, "--expires")
