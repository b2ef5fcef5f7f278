"""What a tenant's job may set: a rule for every text in the job file.

A text without a rule is refused, so a new setting is closed until it gets a rule;
tests/control/tenants/test_policy.py reports it. Numbers and choices need no rule, with two exceptions:
priorities, and amounts of which the tenant has a quota, which must be given to be counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from windlass.control.tenants.tenant_paths import TenantPaths
from windlass.spec.cluster import Cluster
from windlass.spec.errors import BadJob
from windlass.spec.job import Job
from windlass.spec.protocol.queue import QueuedService
from windlass.spec.serve import is_loopback
from windlass.spec.tenancy import Allowance

Rule = Callable[[str, str, TenantPaths], str]
"""From a text, its place in the job file, and the tenant's paths to the text to use."""

SAFE_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|OPENBLAS|NUMEXPR|NCCL|GLOO|TP|CUDA_LAUNCH|CUDA_DEVICE|TOKENIZERS|LC)_[A-Z0-9_]*|LANG|TZ"
)
"""Variables that change how libraries compute, but load no code and name no file."""
CODE = re.compile(
    r"(?i)(LD|DYLD|PYTHON|GLIBC|MALLOC|WINDLASS|GCONV|NSS|BASH|NODE|PERL|RUBY|JAVA|GIT|SSH|RAY|KUBE)\w*"
    r"|PATH|HOME|USER|LOGNAME|SHELL|IFS|ENV|TMPDIR|LOCPATH|HOSTALIASES|RES_OPTIONS|RESOLV_HOST_CONF"
)
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(@[a-z0-9][a-z0-9._-]{0,62})?")


def anything(text: str, what: str, paths: TenantPaths) -> str:
    """Allow any text: it names no path or URL."""
    return text


def place(text: str, what: str, paths: TenantPaths) -> str:
    return paths.check(text, what)


def files(text: str, what: str, paths: TenantPaths) -> str:
    return paths.check_files(text, what)


def model(text: str, what: str, paths: TenantPaths) -> str:
    """Allow a model of the tenant's own registry, or a directory of its own."""
    return text if _MODEL.fullmatch(text) else paths.check_files(text, what)


def loopback(text: str, what: str, paths: TenantPaths) -> str:
    if not is_loopback(text):
        raise BadJob(
            f"{what}: a tenant's service must listen on 127.0.0.1", hint="the gateway forwards to it"
        )
    return text


def never(text: str, what: str, paths: TenantPaths) -> str:
    raise BadJob(f"{what}: a tenant's job may not set it", hint="leave it out; the administrator sets it")


RULES: Mapping[str, Rule] = {
    "name": anything,
    "corpus.sources": files,
    "corpus.text_field": anything,
    "corpus.store": place,
    "corpus.tokenizer.path": files,
    "corpus.cache.folder": place,
    "model.start_from": model,
    "model.ngram.runner_options": never,
    "model.ngram.scratch": place,
    "train.sample_prompts": anything,
    "checkpoint.store": place,
    "cluster.address": never,
    "cluster.image": anything,
    "cluster.namespace": never,
    "cluster.service_account": never,
    "cluster.node_selector": anything,
    "cluster.secrets": anything,
    "cluster.tolerations.key": never,
    "cluster.tolerations.value": never,
    "cluster.volumes.mount": anything,
    "cluster.volumes.claim": anything,
    "cluster.volumes.storage_class": anything,
    "cluster.volumes.host": never,
    "serve.host": loopback,
    "serve.state": never,
    "serve.origins": anything,
    "serve.tls_certificate": files,
    "serve.tls_key": files,
    "serve.engine_args": never,
    "serve.engine_executable": never,
    "serve.price.currency": anything,
    "serve.traces": never,
    "serve.access_log": place,
    "serve.privacy.prompt_log": place,
}
"""Tolerations are the administrator's: a taint keeps nodes from some tenants. `cluster.env` is checked by the
names of its variables."""


def restrict_job(job: Job, paths: TenantPaths, allowance: Allowance, *, own_user: bool) -> Job:
    """Return a tenant's job with all its paths resolved; refuse what a tenant may not set.

    With a user id of its own (`own_user`) a tenant's processes may load any code.
    """
    _check_cluster(job.cluster, paths, allowance, own_user=own_user)
    resolved = _resolved(job, "", paths)
    assert isinstance(resolved, Job)
    return resolved


def confined_service(
    service: QueuedService, paths: TenantPaths, allowance: Allowance, *, own_user: bool
) -> QueuedService:
    """Return a tenant's service; refuse what a tenant may not set."""
    _check_cluster(service.cluster, paths, allowance, own_user=own_user)
    model(service.model, "[service] model", paths)
    loopback(service.host, "[service] host", paths)
    _resolved(service.cluster, "cluster.", paths)
    return service


def _check_cluster(cluster: Cluster, paths: TenantPaths, allowance: Allowance, *, own_user: bool) -> None:
    check_priority(cluster.priority, paths.tenant, allowance, "[cluster] priority")
    _check_amounts(cluster, paths, allowance)
    for name in cluster.env:
        _check_variable(name, paths, own_user=own_user)
    for name in cluster.secrets:
        if CODE.fullmatch(name):
            raise BadJob(f"[cluster] secrets: {name} is not a variable that a tenant's job may set")


def check_priority(priority: int, tenant: str, allowance: Allowance, what: str) -> None:
    """Refuse a priority above the tenant's maximum: priority takes precedence over fair share."""
    if allowance.priority is not None and priority > allowance.priority:
        raise BadJob(f"{what} {priority}: the maximum for tenant '{tenant}' is {allowance.priority}")


def _check_amounts(cluster: Cluster, paths: TenantPaths, allowance: Allowance) -> None:
    for name in ("cores", "memory"):
        if getattr(allowance.quota, name) is not None and getattr(cluster, name) is None:
            raise BadJob(
                f"[cluster] {name}: is missing; it is required because tenant '{paths.tenant}' has a quota",
                hint=f"say how much {name} each worker needs",
            )


def _check_variable(name: str, paths: TenantPaths, *, own_user: bool) -> None:
    allowed = not name.startswith("WINDLASS_") if own_user else SAFE_VARIABLES.fullmatch(name)
    if not allowed or (not own_user and CODE.fullmatch(name)):
        raise BadJob(
            f"[cluster] env: {name} is not a variable that a job of tenant '{paths.tenant}' may set",
            hint="without a user id of its own, only settings of libraries: OMP_..., MKL_..., NCCL_...",
        )


def _resolved(table: BaseModel, at: str, paths: TenantPaths) -> BaseModel:
    """Return a table with the rule applied to every text in it."""
    changed: dict[str, Any] = {}
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if value is None or (isinstance(value, str | PurePath) and value == field.default):
            continue
        new = _checked(value, f"{at}{name}", paths)
        if new != value:
            changed[name] = new
    return table.model_copy(update=changed) if changed else table


def _checked(value: Any, path: str, paths: TenantPaths) -> Any:
    if isinstance(value, BaseModel):
        return _resolved(value, f"{path}.", paths)
    if isinstance(value, tuple):
        return tuple(_checked(each, path, paths) for each in value)
    if isinstance(value, dict):
        for each in value.values() if path != "cluster.env" else ():
            _checked(each, path, paths)
        return value
    if not isinstance(value, str | PurePath) or path in CHOICES:
        return value
    table, _, key = path.rpartition(".")
    what = f"[{table}] {key}" if table else key
    text = RULES.get(path, never)(str(value), what, paths)
    return type(value)(text)


def texts(table: type[BaseModel], at: str = "") -> list[tuple[str, bool]]:
    """List every setting that holds text, and whether it is a choice of fixed words."""
    found: list[tuple[str, bool]] = []

    def look(kind: Any, path: str) -> None:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.extend(texts(kind, f"{path}."))
        elif isinstance(kind, type) and issubclass(kind, str | PurePath):
            found.append((path, False))
        elif get_origin(kind) is Literal:
            found.append((path, True))
        else:
            for inner in get_args(kind):
                look(inner, path)

    for name, field in table.model_fields.items():
        look(field.annotation, f"{at}{name}")
    return found


CHOICES = frozenset(path for path, chosen in texts(Job) if chosen)
