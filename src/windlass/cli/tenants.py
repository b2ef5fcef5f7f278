"""`windlass tenants`: make, list, change and remove those whom a service works for."""

from __future__ import annotations

import argparse

from windlass.cli.state_argument import (
    add_limits,
    described,
    limits_of,
    limits_text,
    opened_state,
    person,
    when,
)
from windlass.cli.terminal import print_json, print_table
from windlass.serve.records.tenants import Settings, Tenant, Tenants
from windlass.spec.errors import AskedWrongly

EPILOG = """\
Tenants share no limits and, unless both agree, no computed beginnings of prompts.

examples:
  windlass tenants make acme --limit tokens_per_minute=100k --limit concurrent=8
  windlass tenants list
  windlass tenants set acme --suspend                  none of its keys opens, until --resume
  windlass tenants remove acme                         once its keys are revoked
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    made = described(verbs, "make", "add a tenant", ["tenants make acme --limit concurrent=8"])
    changed = described(
        verbs, "set", "change a tenant", ["tenants set acme --suspend", "tenants set acme --no-limits"]
    )
    removed = described(verbs, "remove", "remove a tenant that has no keys", ["tenants remove acme"])
    listed = described(verbs, "list", "list tenants", ["tenants list --json"])
    listed.set_defaults(run=run_list)
    for verb, action in ((made, run_make), (changed, run_set), (removed, run_remove)):
        verb.add_argument("name", metavar="TENANT", help="its name")
        verb.set_defaults(run=action)
    for verb in (made, changed):
        add_limits(verb)
        verb.add_argument(
            "--shared-prefix",
            action=argparse.BooleanOptionalAction,
            help="share computed beginnings of prompts with tenants that agree too",
        )
    standing = changed.add_mutually_exclusive_group()
    standing.add_argument(
        "--suspend", dest="suspended", action="store_const", const=True, help="close all its keys"
    )
    standing.add_argument(
        "--resume", dest="suspended", action="store_const", const=False, help="open them again"
    )


def run_make(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        tenant = Tenants(state).make(args.name, person(), limits=limits_of(args), settings=_settings(args))
    return _tell(args, tenant)


def run_set(args: argparse.Namespace) -> int:
    limits, settings = limits_of(args), _settings(args)
    if limits is None and settings is None and args.suspended is None:
        raise AskedWrongly("say what to change", hint="`windlass tenants set --help` shows what is possible")
    with opened_state(args) as state:
        tenant = Tenants(state).set(
            args.name, person(), limits=limits, settings=settings, suspended=args.suspended
        )
    return _tell(args, tenant)


def run_remove(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        Tenants(state).remove(args.name, person())
    print_json({"removed": args.name}) if args.json else print(f"tenant '{args.name}' is gone")
    return 0


def run_list(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        tenants = Tenants(state).list()
    if args.json:
        print_json([tenant.facts() for tenant in tenants])
    else:
        _print(tenants)
    return 0


def _tell(args: argparse.Namespace, tenant: Tenant) -> int:
    print_json(tenant.facts()) if args.json else _print((tenant,))
    return 0


def _print(tenants: tuple[Tenant, ...]) -> None:
    rows = [
        (
            tenant.name,
            "suspended" if tenant.suspended_s is not None else "open",
            "shared" if tenant.settings.shared_prefix else "its own",
            limits_text(tenant.limits),
            when(tenant.made_s or None),
        )
        for tenant in tenants
    ]
    print_table(rows, ("tenant", "is", "prefixes", "limits", "made"))


def _settings(args: argparse.Namespace) -> Settings | None:
    return None if args.shared_prefix is None else Settings(shared_prefix=args.shared_prefix)
