"""Lends the browser tests the gateway and the scripted engine of tests/serve/gateway."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

_source = Path(__file__).parent.parent / "serve" / "gateway" / "conftest.py"
_spec = importlib.util.spec_from_file_location("gateway_under_test", _source)
assert _spec is not None
assert _spec.loader is not None
_lent = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_lent)

model_dir = _lent.model_dir
socket_path = _lent.socket_path
shared_engine = _lent.shared_engine
engine = _lent.engine
start_shared = _lent.start_shared
start_gateway = _lent.start_gateway
shared_gateway = _lent.shared_gateway
gateway = _lent.gateway
given_keys = _lent.given_keys
shared_guarded = _lent.shared_guarded
guarded = _lent.guarded


@pytest.fixture(scope="session")
def artifacts() -> Path:
    folder = Path(__file__).parent.parent / "artifacts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()
