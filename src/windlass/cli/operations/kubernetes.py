"""`windlass kubernetes`: render manifests, and check that an API server would accept them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.cli.job_argument import add_job, job_of
from windlass.cli.serving.state_argument import add_state, opened_state
from windlass.cli.terminal import print_json
from windlass.cluster.kubernetes.cronjob import DAILY, BackupCron, backup
from windlass.cluster.kubernetes.labels import Manifest
from windlass.cluster.kubernetes.pod import setting_of
from windlass.cluster.kubernetes.render import claims, service, training
from windlass.cluster.kubernetes.rules import against_rules
from windlass.cluster.kubernetes.schemas import against_schemas, known_versions
from windlass.cluster.kubernetes.tenancy import OUTSIDE, Egress, NamespaceQuota, priority_classes, tenancy
from windlass.cluster.kubernetes.yaml_io import from_files, to_yaml
from windlass.cluster.training_group import TenantJob, at_home
from windlass.serve.records.tenants import Tenants
from windlass.spec.errors import AskedWrongly, BadInput, did_you_mean
from windlass.spec.units import parse_bytes

EPILOG = """\
No cluster is contacted: `render` writes files, `check` reads them. To launch and follow a run, use
`windlass train JOB.toml --backend kubernetes`.

examples:
  windlass kubernetes render job.toml                                the Job that trains, and what it needs
  windlass kubernetes render job.toml --serve                        the Service of a model
  windlass kubernetes render --tenant acme --quota cores=64 --quota memory=256GiB | kubectl apply -f -
  windlass kubernetes render --tenant acme --recorded                with the quota of `windlass tenants set`
  windlass kubernetes render job.toml --tenant acme --out manifests  all of it, in files
  windlass kubernetes check manifests                                would an API server accept them?
"""

READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cores": ("cores", float),
    "memory": ("memory_bytes", parse_bytes),
    "gpus": ("gpus", int),
    "pods": ("pods", int),
    "jobs": ("jobs", int),
    "storage": ("storage_bytes", parse_bytes),
}
"""The resources of --quota: the field of NamespaceQuota, and the parser of the amount."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    rendered = _verb(
        verbs, "render", "print the manifests of a job", "render job.toml --tenant acme --out manifests"
    )
    add_job(rendered, default="none: with --tenant, only the tenant's manifests")
    add_render(rendered)
    checked = _verb(
        verbs, "check", "check manifests against the schemas and rules of the API", "check manifests"
    )
    checked.add_argument("path", metavar="DIR", type=Path, help="a directory of manifests, or one file")
    checked.add_argument(
        "--version",
        dest="versions",
        metavar="1.N",
        action="append",
        help="check against this version of Kubernetes (default: all that are known; may be repeated)",
    )
    checked.add_argument("--json", action="store_true", help="print JSON")
    checked.set_defaults(run=run_check)


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str, example: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=f"example:\n  windlass kubernetes {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tenant", metavar="T", help="add the tenant's namespace, quota, network policies and RBAC"
    )
    parser.add_argument(
        "--quota",
        metavar="WHAT=AMOUNT",
        action="append",
        default=[],
        help=f"maximum resources of the tenant: {', '.join(READERS)} (may be repeated)",
    )
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="use the quota recorded by `windlass tenants set`; --quota overrides it",
    )
    parser.add_argument(
        "--allow",
        metavar="CIDR:PORT",
        action="append",
        default=[],
        help="allowed egress of its pods (default: 0.0.0.0/0:443; may be repeated)",
    )
    parser.add_argument(
        "--serve",
        metavar="MODEL",
        nargs="?",
        const="",
        help="render the service of a model instead of training",
    )
    parser.add_argument("--backup", metavar="URL", help="add a CronJob that backs the home up to this store")
    parser.add_argument(
        "--schedule", metavar="CRON", default=DAILY, help=f"schedule of the backup (default: '{DAILY}')"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="write files there instead of printing")
    add_state(parser)
    parser.set_defaults(run=run_render)


def run_render(args: argparse.Namespace) -> int:
    files = rendered_files(args)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        for name, manifests in files.items():
            (args.out / name).write_text(to_yaml(manifests), encoding="utf-8")
        summary = {"directory": str(args.out), "files": {name: len(found) for name, found in files.items()}}
        print_json(summary) if args.json else print(f"wrote {', '.join(files)} into {args.out}")
        return 0
    manifests = [manifest for found in files.values() for manifest in found]
    print_json(manifests) if args.json else print(to_yaml(manifests), end="")
    return 0


def rendered_files(args: argparse.Namespace) -> dict[str, list[Manifest]]:
    """Return the files in the order in which a cluster must apply them."""
    if args.job is None and args.tenant is None:
        raise AskedWrongly("nothing to render: give a job file or --tenant", hint="windlass init job.toml")
    if args.tenant is None and (args.quota or args.allow or args.recorded):
        raise AskedWrongly("--quota, --recorded and --allow need --tenant")
    files: dict[str, list[Manifest]] = {}
    if args.tenant is not None:
        files["00-cluster.yaml"] = priority_classes()
        quota = quota_of(args.quota, recorded_quota(args) if args.recorded else NamespaceQuota())
        files["10-tenant.yaml"] = tenancy(args.tenant, quota, egress_of(args.allow))
    if args.job is None:
        return files
    request = TenantJob(job_of(args), args.tenant or "default")
    if made := claims(request):
        files["15-volumes.yaml"] = made
    if args.serve is not None:
        files["20-service.yaml"] = service(request, args.serve or None)
    else:
        files["20-training.yaml"] = training(request)
    if args.backup is not None:
        files["30-backup.yaml"] = [
            backup(
                BackupCron(
                    args.backup,
                    request.tenant,
                    at_home(request.cluster),
                    args.schedule,
                    setting_of(request.cluster),
                )
            )
        ]
    return files


def recorded_quota(args: argparse.Namespace) -> NamespaceQuota:
    """Return the tenant's quota from the state of the service, which the scheduler uses, too."""
    with opened_state(args) as state:
        quota = Tenants(state).get(args.tenant).allowance.quota
    return NamespaceQuota(quota.cores, quota.memory, quota.gpus, jobs=quota.jobs, storage_bytes=quota.disk)


def quota_of(texts: list[str], recorded: NamespaceQuota) -> NamespaceQuota:
    """Parse --quota cores=64 --quota memory=256GiB; these override the recorded quota."""
    given: dict[str, Any] = {}
    for text in texts:
        what, equals, amount = text.partition("=")
        if what not in READERS or not equals:
            raise BadInput(f"--quota {text}: is not WHAT=AMOUNT", hint=did_you_mean(what, list(READERS)))
        field, reader = READERS[what]
        try:
            given[field] = reader(amount)
        except ValueError as error:
            raise BadInput(f"--quota {text}: {error}") from error
    return replace(recorded, **given)


def egress_of(texts: list[str]) -> tuple[Egress, ...]:
    """Parse --allow 10.0.0.0/8:9000."""
    import ipaddress

    found = []
    for text in texts:
        block, _, port = text.rpartition(":")
        try:
            found.append(Egress(str(ipaddress.ip_network(block)), int(port)))
        except ValueError as error:
            raise BadInput(f"--allow {text}: is not CIDR:PORT", hint="e.g. 10.0.0.0/8:9000") from error
    return tuple(found) or OUTSIDE


def run_check(args: argparse.Namespace) -> int:
    manifests = from_files(args.path)
    versions = args.versions or known_versions()
    found = [*against_schemas(manifests, versions), *map(str, against_rules(manifests))]
    if args.json:
        print_json({"objects": len(manifests), "versions": versions, "found": found})
    elif not found:
        print(
            f"{len(manifests)} objects are valid for Kubernetes {versions[0]} to {versions[-1]},"
            " and follow our rules"
        )
    if found and not args.json:
        raise BadInput(
            f"{args.path}: {len(found)} errors that an API server would reject", hint="\n    ".join(found)
        )
    return 2 if found else 0
