"""Repositories of the Hugging Face Hub, or of a mirror at $HF_ENDPOINT, through its client library.

The only module that imports huggingface_hub (extra `hub`). $HF_TOKEN opens private and gated repositories.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from huggingface_hub.utils.tqdm import disable_progress_bars

from windlass.registry.sources.model_source import ModelSource
from windlass.registry.sources.repository import HubFile, unreachable
from windlass.spec.errors import BadInput, NotFound

MIRROR = "HF_ENDPOINT"
PUBLIC = "https://huggingface.co"
UNREACHED = (OSError, errors.HTTPError)  # type: ignore[attr-defined]
"""What the library raises when no server answers: its transport's errors, or its own for offline mode."""


class HuggingFaceRepository:
    """One revision, whose commit is looked up once, so that all files are of the same."""

    def __init__(self, address: ModelSource) -> None:
        self._address = address
        # Read here: the library reads the variable once, when it is imported.
        self._endpoint = (os.environ.get(MIRROR) or PUBLIC).rstrip("/")
        disable_progress_bars()
        hub = huggingface_hub.HfApi(endpoint=self._endpoint, library_name="windlass")
        where = f"{self._endpoint}/api/models/{address.where}/revision/{address.revision or 'main'}"
        with self._translated(where):
            info = hub.model_info(address.where, revision=address.revision or "main", files_metadata=True)
        self.revision = str(info.sha)
        self.files = [
            HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None, each.blob_id)
            for each in info.siblings or ()
        ]

    def fetch(self, file: HubFile, folder: Path) -> None:
        url = huggingface_hub.hf_hub_url(
            self._address.where, file.name, revision=self.revision, endpoint=self._endpoint
        )
        with self._translated(url):
            if file.sha256 is not None:
                _fetch_resumed(url, file, folder)
                return
            huggingface_hub.hf_hub_download(
                self._address.where,
                file.name,
                revision=self.revision,
                local_dir=folder,
                endpoint=self._endpoint,
                library_name="windlass",
            )

    @contextmanager
    def _translated(self, where: str) -> Iterator[None]:
        """Turn an error of the library into a sentence with what was tried."""
        text, revision = self._address.text, self._address.revision
        try:
            yield
        except errors.GatedRepoError:
            raise NotFound(
                f"{text}: its owner wants you to accept terms first",
                hint=f"accept them at {PUBLIC}/{self._address.where}, and set HF_TOKEN to a token of yours",
            ) from None
        except errors.RevisionNotFoundError:
            raise NotFound(f"{text}: the repository has no revision '{revision or 'main'}'") from None
        except errors.RepositoryNotFoundError:
            raise NotFound(
                f"{text}: {self._endpoint} has no such repository, or it is private",
                hint="check the spelling; HF_TOKEN opens a private one",
            ) from None
        except errors.HFValidationError as error:
            raise BadInput(f"{text}: {error}") from None
        except UNREACHED as error:
            raise unreachable(self._address, f"GET {where}", error, MIRROR) from None


def _fetch_resumed(url: str, file: HubFile, folder: Path) -> None:
    """Fetch a large file into NAME.DIGEST.part, and continue there when the command is run again.

    `hf_hub_download` resumes while it runs, but throws away what it has when it gives up.
    """
    part = folder / f"{file.name}.{str(file.sha256)[:16]}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    there = huggingface_hub.get_hf_file_metadata(url, library_name="windlass").location
    # The hub sends clients to a store, by an address that is signed; a token is not for that server.
    is_hub = urlsplit(there).netloc == urlsplit(url).netloc
    headers = build_hf_headers(token=None if is_hub else False, library_name="windlass")
    with part.open("ab") as out:
        if out.tell() > file.bytes:
            out.truncate(0)
        http_get(there, out, resume_size=out.tell(), headers=headers, expected_size=file.bytes)
    part.replace(folder / file.name)
