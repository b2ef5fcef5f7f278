"""Checks manifests against the published schemas of several Kubernetes versions.

The schemas come from the package kubernetes-validate (extra `kubernetes`), in their strict form: a field that
the API does not have is an error. They do not check combinations of fields; `rules` does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from windlass.cluster.kubernetes.labels import Manifest
from windlass.spec.errors import BadInput

OLDEST = (1, 29)
"""From this version on limits per index are enabled by default (beta; stable since 1.33)."""


def known_versions() -> list[str]:
    """Return the versions to check, oldest first: from the first supported to the newest."""
    import kubernetes_validate.utils as published

    found = [published.major_minor(version) for version in published.all_versions()]
    kept = {tuple(map(int, each.split("."))) for each in found}
    return [f"{major}.{minor}" for major, minor in sorted(kept) if (major, minor) >= OLDEST]


def against_schemas(manifests: Sequence[Manifest], versions: Iterable[str]) -> list[str]:
    """Return the violations, one sentence each."""
    found = []
    for version in versions:
        for manifest in manifests:
            group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", str(manifest["apiVersion"]))
            validator = _validator(version, f"{str(manifest['kind']).lower()}-{group}")
            if validator is None:
                kind = f"{manifest['apiVersion']} has no such kind"
                found.append(f"{named(manifest)}: {kind} (Kubernetes {version})")
                continue
            for error in validator.iter_errors(manifest):
                where = ".".join(str(part) for part in error.path) or "the object"
                found.append(f"{named(manifest)}: {where}: {error.message[:300]} (Kubernetes {version})")
    return found


@functools.cache
def _validator(version: str, name: str) -> Any:
    """Return the validator of a kind; None if the version does not have it."""
    import jsonschema
    import kubernetes_validate.utils as published

    registry = _registry(version)
    try:
        schema = published.schema_contents(f"{_folder(version)}/{name}.json", version)
    except FileNotFoundError:
        return None
    return jsonschema.Draft202012Validator(schema, registry=registry)


@functools.cache
def _registry(version: str) -> Any:
    import kubernetes_validate.utils as published
    import referencing

    known = known_versions()
    if version not in known:
        raise BadInput(
            f"the schemas of Kubernetes {version} are not known here", hint="known: " + ", ".join(known)
        )
    definitions = published.schema_contents(f"{_folder(version)}/_definitions.json", version)
    return referencing.Resource.from_contents(definitions) @ referencing.Registry()


def _folder(version: str) -> str:
    return f"kubernetes-json-schema/v{version}.0-local-strict"


def named(manifest: Manifest) -> str:
    metadata = manifest.get("metadata") or {}
    within = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{manifest.get('kind')} {within}{metadata.get('name')}"
