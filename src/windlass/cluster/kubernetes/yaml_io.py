"""Manifests as YAML, and back.

YAML readers disagree on unquoted words: `1e3` is a string to one and a number to the next, and `no` is false
to some. So every string that is not plainly a word is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.kubernetes.labels import Manifest
from windlass.spec.errors import BadInput, NotFound

_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_MEANT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
SUFFIXES = (".yaml", ".yml", ".json")


def to_yaml(manifests: Sequence[Manifest]) -> str:
    """Return the documents of one YAML file."""
    import yaml

    dumper_type: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda _self, _data: True})

    def represent(dumper: Any, text: str) -> Any:
        plain = _WORD.fullmatch(text) and text.lower() not in _MEANT
        style = "|" if "\n" in text else None if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    dumper_type.add_representer(str, represent)
    text: str = yaml.dump_all(
        manifests, Dumper=dumper_type, sort_keys=False, explicit_start=True, width=1 << 30
    )
    return text


def from_files(folder: Path) -> list[Manifest]:
    """Read all manifests of a directory, or of one file."""
    if not folder.exists():
        raise NotFound(f"{folder}: there is no such directory")
    found = sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES) if folder.is_dir() else [folder]
    manifests = [manifest for path in found for manifest in _documents(path)]
    if not manifests:
        raise BadInput(f"{folder}: has no manifests", hint="files that end in " + ", ".join(SUFFIXES))
    return manifests


def _documents(path: Path) -> list[Manifest]:
    import yaml

    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: is not valid YAML: {error}") from error
    for each in documents:
        whole = isinstance(each, dict) and all(k in each for k in ("apiVersion", "kind", "metadata"))
        if not whole and path.name != "kustomization.yaml":
            raise BadInput(f"{path}: has a document without apiVersion, kind and metadata")
    return [each for each in documents if each.get("kind") != "Kustomization" and "metadata" in each]
