"""Checks manifests against the published schemas of several Kubernetes versions.

The schemas come from the package kubernetes-validate (extra `kubernetes`), in their strict form: a field that
the API does not have is an error. They say nothing of what goes together; rules.py does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.cluster.on_kubernetes.labels import Manifest
from windlass.spec.errors import BadInput

OLDEST = (1, 29)
"""From here on limits per index are on unless switched off (beta; stable since 1.33)."""


def known_versions() -> list[str]:
    """Return the versions that are checked, oldest first: from the first that we support to the newest."""
    import kubernetes_validate.utils as published

    found = [published.major_minor(version) for version in published.all_versions()]
    kept = {tuple(map(int, each.split("."))) for each in found}
    return [f"{major}.{minor}" for major, minor in sorted(kept) if (major, minor) >= OLDEST]


def against_schemas(manifests: Sequence[Manifest], versions: Iterable[str]) -> list[str]:
    """Return what does not fit, one sentence each."""
    import kubernetes_validate as published

    found = []
    for version in versions:
        for manifest in manifests:
            try:
                published.validate(manifest, version, strict=True)
            except published.ValidationError as error:
                where = ".".join(str(part) for part in error.path) or "the object"
                found.append(f"{named(manifest)}: {where}: {error.message[:300]} (Kubernetes {version})")
            except published.SchemaNotFoundError:
                found.append(
                    f"{named(manifest)}: {manifest['apiVersion']} has no such kind (Kubernetes {version})"
                )
            except published.VersionNotSupportedError as error:
                raise BadInput(
                    f"the schemas of Kubernetes {version} are not known here",
                    hint="known: " + ", ".join(known_versions()),
                ) from error
    return found


def named(manifest: Manifest) -> str:
    metadata = manifest.get("metadata") or {}
    within = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{manifest.get('kind')} {within}{metadata.get('name')}"
