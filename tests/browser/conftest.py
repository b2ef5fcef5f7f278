"""Lends the browser tests the gateway and scripted engine of tests/serve/gateway, and what looks at pages.

Screenshots go to $WINDLASS_ARTIFACTS, or tests/artifacts. axe-core is looked for in $WINDLASS_AXE, or where
./test puts it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_S = 60.0
expect.set_options(timeout=PATIENCE_S * 1000)

AXE = (
    Path(os.environ.get("WINDLASS_AXE", Path(sys.prefix) / "axe"))
    / "node_modules"
    / "axe-core"
    / "axe.min.js"
)

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
impatient = _lent.impatient
given_keys = _lent.given_keys
shared_guarded = _lent.shared_guarded
guarded = _lent.guarded


@pytest.fixture(scope="session")
def artifacts() -> Path:
    folder = Path(os.environ.get("WINDLASS_ARTIFACTS", Path(__file__).parent.parent / "artifacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a module: while it runs, no other test can run an event loop."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


class Opens(Protocol):
    """Opens pages in a context of their own, signed in if a key is given."""

    def __call__(
        self, url: str, *, locale: str = "en-GB", key: str | None = None, **settings: Any
    ) -> AbstractContextManager[Page]: ...


@pytest.fixture
def complaints() -> list[str]:
    """Uncaught errors and console errors of the pages opened by `opened`."""
    return []


@pytest.fixture
def opened(browser: Browser, complaints: list[str]) -> Opens:
    @contextmanager
    def opens(url: str, *, locale: str = "en-GB", key: str | None = None, **settings: Any) -> Iterator[Page]:
        permissions = ["clipboard-read", "clipboard-write"]
        with browser.new_context(locale=locale, permissions=permissions, **settings) as context:
            if key is not None:
                context.add_init_script(f"sessionStorage.setItem('windlass-key', {key!r})")
            page = context.new_page()
            page.set_default_timeout(PATIENCE_S * 1000)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
            page.goto(url)
            yield page

    return opens


@pytest.fixture
def axe() -> Callable[[Page], None]:
    """Check a page with axe-core; fail on serious or critical findings."""
    if not AXE.exists():
        pytest.skip(f"axe-core is not at {AXE}; ./test installs it where npm is at hand")
    source = AXE.read_text("utf-8")

    def look(page: Page) -> None:
        page.evaluate(source)  # by the debugger, which the page's policy does not stop
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        bad = [
            f"{each['impact']} {each['id']}: {node['html']} {node.get('failureSummary', '')}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        assert bad == [], "\n".join(bad)

    return look
