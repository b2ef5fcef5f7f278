"""`windlass tenants`: make, list, change and remove tenants, with their quotas."""

from __future__ import annotations

import argparse
import sys

from windlass.cli.home import home_of
from windlass.cli.serving.state_argument import (
    add_limits,
    described,
    limits_of,
    limits_text,
    opened_state,
    person,
    when,
)
from windlass.cli.terminal import print_json, print_table
from windlass.cluster.process.sandbox import MAX_SECRET_BYTES
from windlass.control.tenants.tenant_registry import keep_secret
from windlass.serve.records.tenants import Tenant, Tenants, TenantSettings
from windlass.spec.errors import AskedWrongly
from windlass.spec.read import parse
from windlass.spec.tenancy import Allowance, TenantResourceQuota, quota_from
from windlass.spec.units import format_bytes

EPILOG = """\
Tenants share no limits and, unless both agree, no prefix cache. docs/guides/tenants.md describes what else is
isolated, and what is not.

examples:
  windlass tenants make acme --limit tokens_per_minute=100k --limit concurrent=8
  windlass tenants list
  windlass tenants set acme --quota cores=8,memory=16GiB,gpus=0,jobs=4 --weight 2
  windlass tenants set acme --root s3://bucket/acme --credential AWS_SECRET_ACCESS_KEY=acme-s3/secret
  windlass tenants secret acme acme-s3/secret < secret.txt
  windlass tenants set acme --suspend                  reject all its keys until --resume
  windlass tenants remove acme                         once its keys are revoked
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    made = described(verbs, "make", "add a tenant", ["tenants make acme --limit concurrent=8"])
    changed = described(
        verbs,
        "set",
        "change a tenant",
        ["tenants set acme --suspend", "tenants set acme --no-limits", "tenants set acme --quota jobs=4"],
    )
    removed = described(verbs, "remove", "remove a tenant that has no keys", ["tenants remove acme"])
    kept = described(
        verbs,
        "secret",
        "store the value of a credential, read from standard input, for its processes on this machine",
        ["tenants secret acme acme-s3/secret < secret.txt", "tenants secret acme acme-s3/secret --drop"],
    )
    kept.add_argument("name", metavar="TENANT", help="its name")
    kept.add_argument(
        "reference", metavar="SECRET/KEY", help="name in the tenant's credentials or in [cluster.secrets]"
    )
    kept.add_argument("--drop", action="store_true", help="remove the value")
    kept.set_defaults(run=run_secret)
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
            help="share the prefix cache with tenants that also agree",
        )
        _add_allowance(verb)
    standing = changed.add_mutually_exclusive_group()
    standing.add_argument(
        "--suspend", dest="suspended", action="store_const", const=True, help="reject all its keys"
    )
    standing.add_argument(
        "--resume", dest="suspended", action="store_const", const=False, help="accept them again"
    )


def _add_allowance(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("jobs", "resources of its jobs, and where their data is stored")
    group.add_argument(
        "--quota",
        metavar="WHAT=AMOUNT,...",
        action="append",
        default=[],
        help=f"maximum at a time: {', '.join(TenantResourceQuota.model_fields)}; WHAT=none removes one"
        " (may be repeated)",
    )
    group.add_argument("--weight", type=float, help="fair-share weight (default: 1)")
    group.add_argument("--priority", type=int, help="maximum priority of its jobs (default: 0)")
    group.add_argument("--root", metavar="URL", help="store prefix that contains its data; '' for none")
    group.add_argument(
        "--credential",
        metavar="VARIABLE=SECRET/KEY",
        action="append",
        default=[],
        help="environment variable of its processes and the secret with its value (may be repeated;"
        " replaces all)",
    )


def run_make(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        tenant = Tenants(state).make(
            args.name,
            person(),
            limits=limits_of(args),
            settings=_settings(args),
            allowance=_allowed(args, Allowance()),
        )
    return _print_tenant(args, tenant)


def run_set(args: argparse.Namespace) -> int:
    limits, settings = limits_of(args), _settings(args)
    single = (args.weight, args.priority, args.root)
    allows = bool(args.quota or args.credential) or any(each is not None for each in single)
    if limits is None and settings is None and args.suspended is None and not allows:
        raise AskedWrongly("nothing to change", hint="`windlass tenants set --help` shows what is possible")
    with opened_state(args) as state:
        tenant = Tenants(state).set(
            args.name,
            person(),
            limits=limits,
            settings=settings,
            suspended=args.suspended,
            allow=(lambda old: _allowed(args, old)) if allows else None,
        )
    return _print_tenant(args, tenant)


def run_secret(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        Tenants(state).get(args.name)
    value = None if args.drop else sys.stdin.buffer.read(MAX_SECRET_BYTES + 1)
    keep_secret(home_of(args), args.name, args.reference, value)
    done = "dropped" if args.drop else "kept"
    print_json({done: args.reference}) if args.json else print(f"{args.reference} of '{args.name}' is {done}")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        Tenants(state).remove(args.name, person())
    print_json({"removed": args.name}) if args.json else print(f"tenant '{args.name}' is removed")
    return 0


def run_list(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        tenants = Tenants(state).list()
    if args.json:
        print_json([tenant.facts() for tenant in tenants])
    else:
        _print(tenants)
    return 0


def _print_tenant(args: argparse.Namespace, tenant: Tenant) -> int:
    print_json(tenant.facts()) if args.json else _print((tenant,))
    return 0


def _print(tenants: tuple[Tenant, ...]) -> None:
    rows = [
        (
            tenant.name,
            "suspended" if tenant.suspended_s is not None else "open",
            "shared" if tenant.settings.shared_prefix else "its own",
            limits_text(tenant.limits),
            f"{tenant.allowance.weight:g}",
            _quota_text(tenant.allowance.quota),
            tenant.allowance.root or "",
            when(tenant.made_s or None),
        )
        for tenant in tenants
    ]
    print_table(rows, ("tenant", "is", "prefixes", "limits", "weight", "quota", "root", "made"))


def _settings(args: argparse.Namespace) -> TenantSettings | None:
    return None if args.shared_prefix is None else TenantSettings(shared_prefix=args.shared_prefix)


def _allowed(args: argparse.Namespace, old: Allowance) -> Allowance:
    """Return the allowance changed by the options; a quota changes entry by entry."""
    values = old.model_dump(exclude_none=True)
    for text in args.quota:
        for name, value in quota_from(text).items():
            values["quota"][name] = None if value == "none" else value
    for name in ("weight", "priority"):
        if getattr(args, name) is not None:
            values[name] = getattr(args, name)
    if args.root is not None:
        values["root"] = args.root or None
    if args.credential:
        values["credentials"] = dict(_credential(text) for text in args.credential)
    return parse(Allowance, values, "allowance")


def _credential(text: str) -> tuple[str, str]:
    variable, equals, reference = text.partition("=")
    if not equals:  # not shown in the error: it may be the secret itself
        raise AskedWrongly("--credential: write VARIABLE=SECRET/KEY, the name of a secret and not its value")
    return variable, reference


def _quota_text(quota: TenantResourceQuota) -> str:
    entries = quota.model_dump(exclude_none=True)
    sizes = ("memory", "disk", "log")
    return " ".join(f"{k}={format_bytes(v) if k in sizes else f'{v:g}'}" for k, v in entries.items())
