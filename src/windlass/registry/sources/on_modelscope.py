"""Repositories of ModelScope, or of a mirror at $MODELSCOPE_ENDPOINT, through its client library.

The only module that imports modelscope_hub (extra `hub`), the client that the larger package modelscope uses
itself. $MODELSCOPE_API_TOKEN opens private repositories.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # its bars cannot be switched off; ours counts all files

from modelscope_hub import HubApi, HubConfig
from modelscope_hub.errors import (
    AuthenticationError,
    FileIntegrityError,
    HubError,
    NotExistError,
    PermissionDeniedError,
)

from windlass.registry.sources.model_source import ModelSource
from windlass.registry.sources.repository import HubFile, unreachable
from windlass.spec.errors import Damaged, NotFound

MIRROR = "MODELSCOPE_ENDPOINT"
MODEL, BRANCH = "model", "master"


class ModelScopeRepository:
    """One revision. ModelScope names no commit in its list, so the revision stays as it was given."""

    def __init__(self, address: ModelSource) -> None:
        self._address = address
        config = HubConfig(endpoint=os.environ.get(MIRROR) or None)
        self._hub, self._endpoint = HubApi(config), str(config.endpoint)
        self.revision = address.revision or BRANCH
        with self._translated(f"{self._endpoint}/api/v1/models/{address.where}/repo/files"):
            listed = self._hub.list_repo_files(address.where, MODEL, revision=self.revision)
        self.files = [HubFile(each.path, each.size, each.sha256) for each in listed if not each.is_dir]

    def fetch(self, file: HubFile, folder: Path) -> None:
        with self._translated(f"{self._endpoint}/models/{self._address.where}, file {file.name}"):
            self._hub.download_file(
                self._address.where,
                MODEL,
                file.name,
                revision=self.revision,
                local_dir=folder,
                expected_sha256=file.sha256,
                file_size=file.bytes,
            )

    @contextmanager
    def _translated(self, where: str) -> Iterator[None]:
        """Turn an error of the library into a sentence with what was tried."""
        text = self._address.text
        try:
            yield
        except FileIntegrityError as error:
            raise Damaged(
                f"{text}: {error.message}", hint="run the same command again to fetch it anew"
            ) from None
        except (NotExistError, PermissionDeniedError, AuthenticationError):
            raise NotFound(
                f"{text}: {self._endpoint} has no such repository with a revision '{self.revision}', "
                "or it is private",
                hint="check the spelling; MODELSCOPE_API_TOKEN opens a private one",
            ) from None
        except (HubError, OSError) as error:
            raise unreachable(self._address, f"GET {where}", error, MIRROR) from None
