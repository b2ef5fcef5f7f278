"""The registry over the control API: what `windlass models list|show|promote|rollback` does.

GET  /v1/models                                  all registered models, their versions, aliases and lineage
GET  /v1/models/{name}                           one of them
POST /v1/models/{name}/promote                   make a version @prod
POST /v1/models/{name}/rollback                  make @previous @prod again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter
from fastapi import Path as InPath
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from windlass.control.api.bodies import OwnRoute, body_of, home_of, read_body, tenant_context, with_rights
from windlass.control.api.control_errors import ControlError
from windlass.control.api.journal import finite
from windlass.control.tenants.impersonate import sound
from windlass.http.errors import plain
from windlass.registry.versions import Registry, Version
from windlass.spec.errors import NotFound
from windlass.spec.protocol.control import (
    ControlRefusal,
    ModelReply,
    Nothing,
    PromoteBody,
    RegistryReply,
    VersionReply,
)

T = TypeVar("T")
Name = Annotated[str, InPath(description="the model's name, without a version")]

router = APIRouter(
    route_class=OwnRoute, responses={"4XX": {"model": ControlRefusal}, "5XX": {"model": ControlRefusal}}
)


@router.get("/v1/models")
def list_models(request: Request) -> RegistryReply:
    """List all registered models."""
    registry = _registry(request)
    return RegistryReply(models=[_model(registry, name) for name in registry.names()])


@router.get("/v1/models/{name}")
def show_model(request: Request, name: Name) -> ModelReply:
    """Show a model: its versions, which of them is @prod, where each comes from and how good it is."""
    registry = _registry(request)
    return _found(lambda: _model(registry, registry.find(_bare(name)).name))


@router.post("/v1/models/{name}/promote", openapi_extra=body_of(PromoteBody))
async def promote_model(request: Request, name: Name) -> VersionReply:
    """Make a version @prod; what was @prod becomes @previous. What is served stays as it is."""
    body = await read_body(request, PromoteBody)
    wanted = f"{_bare(name)}@{body.version}"

    def work() -> VersionReply:
        return _found(lambda: _version(_registry(request).promote(wanted)))

    return await run_in_threadpool(with_rights, request, work)


@router.post("/v1/models/{name}/rollback", openapi_extra=body_of(Nothing, required=False))
async def roll_back_model(request: Request, name: Name) -> VersionReply:
    """Make @previous @prod again; doing it twice restores the first state."""
    await read_body(request, Nothing)
    bare = _bare(name)

    def work() -> VersionReply:
        return _found(lambda: _version(_registry(request).roll_back(bare)))

    return await run_in_threadpool(with_rights, request, work)


def _registry(request: Request) -> Registry:
    """Return the registry of the caller's tenant; it may contain no links out of its home."""
    home, context = home_of(request), tenant_context(request)
    if context is not None:
        sound(home / "models", home)
    return Registry(home)


def _bare(name: str) -> str:
    """Refuse a version or an alias where a plain name is needed."""
    if "@" in name:
        raise ControlError("model_not_found", f"'{plain(name, 100)}' is not a model name")
    return name


def _found(look: Callable[[], T]) -> T:
    try:
        return look()
    except NotFound as error:
        raise ControlError("model_not_found", error.message, hint=error.hint) from None


def _model(registry: Registry, name: str) -> ModelReply:
    versions = [_version(version) for version in registry.versions(name)]
    return ModelReply(name=name, aliases=registry.aliases(name), versions=versions)


def _version(version: Version) -> VersionReply:
    return VersionReply.model_validate(finite({**version.facts(), "lineage": version.lineage}))
