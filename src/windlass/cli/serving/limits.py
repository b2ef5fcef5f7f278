"""`windlass limits`: set the rate limits of tenants and keys, and show what is left."""

from __future__ import annotations

import argparse
from typing import Any

from windlass.cli.serving.state_argument import (
    add_limits,
    described,
    limits_of,
    limits_text,
    opened_state,
    person,
)
from windlass.cli.terminal import print_json, print_table
from windlass.serve.records.bucket import Rule, rules_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.quotas import ALL, Name, QuotaState, known_budgets, quota_states
from windlass.serve.records.tenants import Tenants
from windlass.spec.errors import AskedWrongly
from windlass.spec.limits import Limits
from windlass.store.database import Database

EPILOG = """\
[serve.limits] of the job file has the global limits, and the default limits of tenants and keys. A change
applies from the next request, in every gateway.

examples:
  windlass limits show
  windlass limits set tenant acme --limit tokens_per_day=5M --limit concurrent=16
  windlass limits set key app --limit requests_per_second=5 --limit burst=20
  windlass limits set key app --no-limits
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    shown = described(verbs, "show", "show limits, and what is left", ["limits show", "limits show --json"])
    shown.set_defaults(run=run_show)
    changed = described(
        verbs,
        "set",
        "set the limits of a tenant or a key",
        ["limits set tenant acme --limit concurrent=16", "limits set key app --no-limits"],
    )
    changed.add_argument("whose", choices=("tenant", "key"), metavar="tenant|key")
    changed.add_argument("name", metavar="NAME", help="name of the tenant, or name or id of the key")
    add_limits(changed)
    changed.set_defaults(run=run_set)


def run_set(args: argparse.Namespace) -> int:
    limits = limits_of(args)
    if limits is None:
        raise AskedWrongly("no limits given", hint="--limit NAME=VALUE, or --no-limits")
    with opened_state(args) as state:
        if args.whose == "tenant":
            given = Tenants(state).set(args.name, person(), limits=limits).limits
        else:
            given = ApiKeys(state).limit(args.name, None if args.no_limits else limits, person()).limits
    if args.json:
        print_json({args.whose: args.name, "limits": _facts(given)})
    else:
        print(f"{args.whose} '{args.name}': {limits_text(given) or 'defaults of the job file'}")
    return 0


def run_show(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        names, rules = _rules(state)
        found = quota_states(state, rules)
    rows = [_row(standing, names, rules[standing.name]) for standing in found]
    if args.json:
        print_json(rows)
    elif rows:
        print_table([tuple(row.values()) for row in rows], tuple(rows[0]))
    else:
        print("no tenant or key has its own limits, and no gateway has counted any use")
    return 0


def _rules(state: Database) -> tuple[dict[str, str], dict[Name, Rule]]:
    """Return display names, and the rules of all tenants and keys with limits; else as last counted."""
    limited: dict[str, Limits | None] = {f"tenant:{each.name}": each.limits for each in Tenants(state).list()}
    names = {ALL: "everybody"} | {scope: scope.replace(":", " ", 1) for scope in limited}
    for key in ApiKeys(state).list():
        if key.revoked_s is None:
            names[f"key:{key.id}"] = f"key {key.name}"
            limited[f"key:{key.id}"] = key.limits
    rules = {name: rule for name, rule in known_budgets(state).items() if name.scope in names}
    for scope, limits in limited.items():
        rules |= {Name(scope, kind): rule for kind, rule in rules_of(limits or Limits()).items()}
    return names, rules


def _row(standing: QuotaState, names: dict[str, str], rule: Rule) -> dict[str, Any]:
    name = standing.name
    return {
        "whose": names[name.scope],
        "limit": name.kind,
        "capacity": round(rule.capacity),
        "left": round(standing.left),
        "held": round(standing.lent),
        "gateways": standing.holders,
    }


def _facts(limits: Limits | None) -> dict[str, Any] | None:
    return None if limits is None else limits.model_dump(exclude_none=True)
