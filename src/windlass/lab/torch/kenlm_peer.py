"""KenLM, for comparison only: its estimator `lmplz`, and its Python module.

Neither is installed with windlass; tools/kenlm builds both into a directory, which WINDLASS_KENLM names.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.spec.errors import NotFound, ProcessFailed

VARIABLE = "WINDLASS_KENLM"
_KIBIBYTE = 1024


@dataclass(frozen=True)
class Built:
    """Time and memory of a run of lmplz."""

    arpa: Path
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class KenLM:
    """The two programs."""

    lmplz: Path
    module: Any

    def estimate(
        self, text: Path, order: int, prune: Sequence[int], target: Path, *, memory: str = "1G", pad: int = 0
    ) -> Built:
        """Make an ARPA file from a text, one sentence per line; `pad` is the vocabulary size, if larger."""
        command = [str(self.lmplz), "-o", str(order), "-S", memory, "-T", str(target.parent)]
        command += ["--text", str(text), "--arpa", str(target), "--vocab_pad", str(pad)]
        command += ["--prune", *map(str, prune)] if any(prune) else []
        began = time.perf_counter()
        with tempfile.TemporaryFile() as said, subprocess.Popen(command, stderr=said) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.perf_counter() - began
            if process.returncode:
                said.seek(0)
                raise ProcessFailed(f"lmplz failed: {said.read().decode(errors='replace')[-500:]}")
        return Built(target, seconds, used.ru_maxrss * _KIBIBYTE)

    def load(self, arpa: Path) -> Any:
        """Load a model; the library's progress bar on standard error is discarded."""
        config = self.module.Config()
        config.show_progress = False
        config.arpa_complain = self.module.ARPALoadComplain.NONE
        return self.module.Model(str(arpa), config)


def find_kenlm() -> KenLM:
    """Return KenLM; the error says how to install it."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        raise NotFound(
            "KenLM, which n-gram models are compared with, is not installed",
            hint=f"tools/kenlm DIRECTORY builds it (about two minutes), then {VARIABLE}=DIRECTORY",
        )
    lmplz, site = Path(folder) / "bin" / "lmplz", Path(folder) / "site"
    if str(site) not in sys.path:
        sys.path.append(str(site))
    try:
        module = importlib.import_module("kenlm")
    except ImportError as error:
        raise NotFound(f"{site}: {error}", hint=f"run tools/kenlm {folder} again") from None
    if not lmplz.exists():
        raise NotFound(f"{lmplz}: no such program", hint=f"run tools/kenlm {folder} again")
    return KenLM(lmplz, module)
