"""What the job of a tenant may say: a rule for every text in it.

A text that has no rule is refused, so that a setting which somebody adds is closed until somebody thought
about it; tests/control/tenants/test_policy.py finds it first. Numbers and choices need no rule but two: a
priority, and amounts where the tenant has a quota, without which nothing could be counted.
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
"""From a text, where it stands, and the tenant's ground: the text as it shall be used."""

SAFE_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|OPENBLAS|NUMEXPR|NCCL|GLOO|TP|CUDA_LAUNCH|CUDA_DEVICE|TOKENIZERS|LC)_[A-Z0-9_]*|LANG|TZ"
)
"""What changes how libraries compute, and loads no code and names no file."""
CODE = re.compile(
    r"(?i)(LD|DYLD|PYTHON|GLIBC|MALLOC|WINDLASS|GCONV|NSS|BASH|NODE|PERL|RUBY|JAVA|GIT|SSH|RAY|KUBE)\w*"
    r"|PATH|HOME|USER|LOGNAME|SHELL|IFS|ENV|TMPDIR|LOCPATH|HOSTALIASES|RES_OPTIONS|RESOLV_HOST_CONF"
)
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(@[a-z0-9][a-z0-9._-]{0,62})?")


def anything(text: str, what: str, ground: TenantPaths) -> str:
    """Allow words that name no place."""
    return text


def place(text: str, what: str, ground: TenantPaths) -> str:
    return ground.check(text, what)


def files(text: str, what: str, ground: TenantPaths) -> str:
    return ground.check_files(text, what)


def model(text: str, what: str, ground: TenantPaths) -> str:
    """Allow a registered model, which is the tenant's own, or a directory of its own."""
    return text if _MODEL.fullmatch(text) else ground.check_files(text, what)


def loopback(text: str, what: str, ground: TenantPaths) -> str:
    if not is_loopback(text):
        raise BadJob(f"{what}: a tenant's service listens on 127.0.0.1", hint="a gateway stands in front")
    return text


def never(text: str, what: str, ground: TenantPaths) -> str:
    raise BadJob(f"{what}: a tenant's job may not set it", hint="leave it out; the installation decides it")


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
"""Tolerations are the administrator's: a taint is how nodes are kept from some tenants. `cluster.env` is
judged by the names of its variables."""


def restrict_job(job: Job, ground: TenantPaths, allowance: Allowance, *, own_user: bool) -> Job:
    """Return a tenant's job with all its places settled; refuse what is not the tenant's to say.

    With a user id of its own (`own_user`) a tenant's processes may be told to load what they like.
    """
    _check_cluster(job.cluster, ground, allowance, own_user=own_user)
    settled = _settled(job, "", ground)
    assert isinstance(settled, Job)
    return settled


def confined_service(
    service: QueuedService, ground: TenantPaths, allowance: Allowance, *, own_user: bool
) -> QueuedService:
    """Return a tenant's service; refuse what is not the tenant's to say."""
    _check_cluster(service.cluster, ground, allowance, own_user=own_user)
    model(service.model, "[service] model", ground)
    loopback(service.host, "[service] host", ground)
    _settled(service.cluster, "cluster.", ground)
    return service


def _check_cluster(cluster: Cluster, ground: TenantPaths, allowance: Allowance, *, own_user: bool) -> None:
    check_priority(cluster.priority, ground.tenant, allowance, "[cluster] priority")
    _check_amounts(cluster, ground, allowance)
    for name in cluster.env:
        _check_variable(name, ground, own_user=own_user)
    for name in cluster.secrets:
        if CODE.fullmatch(name):
            raise BadJob(f"[cluster] secrets: {name} is not a variable that a tenant's job may set")


def check_priority(priority: int, tenant: str, allowance: Allowance, what: str) -> None:
    """Refuse a priority beyond what the tenant was granted: it would go before every share."""
    if allowance.priority is not None and priority > allowance.priority:
        raise BadJob(f"{what} {priority}: tenant '{tenant}' may ask for {allowance.priority} at most")


def _check_amounts(cluster: Cluster, ground: TenantPaths, allowance: Allowance) -> None:
    for name in ("cores", "memory"):
        if getattr(allowance.quota, name) is not None and getattr(cluster, name) is None:
            raise BadJob(
                f"[cluster] {name}: is missing; tenant '{ground.tenant}' has a quota of it",
                hint=f"say how much {name} each worker needs",
            )


def _check_variable(name: str, ground: TenantPaths, *, own_user: bool) -> None:
    allowed = not name.startswith("WINDLASS_") if own_user else SAFE_VARIABLES.fullmatch(name)
    if not allowed or (not own_user and CODE.fullmatch(name)):
        raise BadJob(
            f"[cluster] env: {name} is not a variable that a job of tenant '{ground.tenant}' may set",
            hint="without a user id of its own, only what libraries compute by: OMP_..., MKL_..., NCCL_...",
        )


def _settled(table: BaseModel, at: str, ground: TenantPaths) -> BaseModel:
    """Return a table with every text in it judged by its rule."""
    changed: dict[str, Any] = {}
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if value is None or (isinstance(value, str | PurePath) and value == field.default):
            continue
        new = _judged(value, f"{at}{name}", ground)
        if new != value:
            changed[name] = new
    return table.model_copy(update=changed) if changed else table


def _judged(value: Any, path: str, ground: TenantPaths) -> Any:
    if isinstance(value, BaseModel):
        return _settled(value, f"{path}.", ground)
    if isinstance(value, tuple):
        return tuple(_judged(each, path, ground) for each in value)
    if isinstance(value, dict):
        for each in value.values() if path != "cluster.env" else ():
            _judged(each, path, ground)
        return value
    if not isinstance(value, str | PurePath) or path in CHOICES:
        return value
    table, _, key = path.rpartition(".")
    what = f"[{table}] {key}" if table else key
    text = RULES.get(path, never)(str(value), what, ground)
    return type(value)(text)


def texts(table: type[BaseModel], at: str = "") -> list[tuple[str, bool]]:
    """List every setting that holds text, and whether it is one of a few given words."""
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
