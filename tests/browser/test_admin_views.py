"""The views for operators, in a real Chromium: runs, planner, models, service.

A real gateway with a real state, a real control process, runs as `windlass train` writes them down, and a
small real registry. Whoever trains is played by the tests: they append what a trainer would to the journal.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx
import pytest
from playwright.sync_api import Page, expect

from windlass.corpus.batches import digest_of_range
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.registry.versions import Registry
from windlass.serve.gateway.control_client import Upstream
from windlass.serve.gateway.edge.access import Access
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.bucket import LeaseRequest, rules_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.quotas import Name, renew_leases
from windlass.spec.job import Job
from windlass.spec.limits import Limits
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.spec.settings import SETTINGS
from windlass.store.journal import Journal
from windlass.store.lock import locked
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]

PATIENCE_S = 60.0
STEPS, BATCH = 200, 8
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
VIEWS = ("runs", "runs/poems/1", "plan", "models", "service")


@dataclass(frozen=True)
class Stage:
    """What the views show: the gateway's address, the home behind it, and a key for each scope."""

    url: str
    home: Path
    tokens: dict[str, str]

    def run(self, number: int) -> Path:
        return self.home / "runs" / "poems" / str(number)

    def tell(self, number: int, **record: Any) -> None:
        """Add a record to a run's journal, as its trainer would."""
        Journal(StoreDir(self.run(number)), JOURNAL).append({"time": round(time.time(), 3), **record})

    def requested(self, number: int) -> dict[str, Any]:
        return dict(json.loads((self.run(number) / SETTINGS).read_bytes()))


@pytest.fixture(scope="module")
def stage(
    start_shared: Any, shared_engine: Any, given_keys: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("home")
    write_runs(home)
    register_models(home, tmp_path_factory.mktemp("models"))
    own = type(given_keys)(tmp_path_factory.mktemp("state"))
    shared_engine.start()
    gateway = start_shared(access=Access(keys=own.keys))
    gateway.service.database = own.keys._database
    spend_some(own.keys)
    with control_process(home) as socket:
        gateway.service.control = Upstream.at(socket)
        yield Stage(gateway.url, home, own.tokens)


@contextmanager
def control_process(home: Path) -> Iterator[Path]:
    """The process that a service starts next to its gateways."""
    with tempfile.TemporaryDirectory(prefix="windlass-") as folder:
        socket, key = Path(folder) / "control", Path(folder) / "control.key"
        key.write_text("a-key-of-the-tests")
        module = ["-m", "windlass.control.api.control_process"]
        command = [sys.executable, *module, "--home", home, "--socket", socket, "--key", key]
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert b"listening" in process.stdout.readline()
        try:
            yield socket
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            process.stdout.close()


def write_runs(home: Path) -> None:
    for number in (1, 2):
        job = Job.model_validate(
            {
                "name": "poems",
                "layout": {"dp": 2},
                "model": {"layers": 4, "width": 64},
                "train": {"steps": STEPS, "batch_sequences": BATCH},
            }
        )
        corpus = CorpusFacts("corpus", "digest", 512, 1_000_000, 100_000)
        run = plan_run(job, corpus, MachineFacts(2, 8 << 30, 1e11, False))
        folder = StoreDir(home / "runs" / "poems" / str(number))
        folder.write(RUN_FILE, run.model_dump_json().encode())
        for record in story(time.time() - 900, run.predicted.tokens_per_s):
            Journal(folder, JOURNAL).append(record)


def story(began: float, speed: float) -> Iterator[dict[str, Any]]:
    """The events of a run that loses a worker at step 60 and continues from memory."""
    yield {"event": "started", "time": began, "parameters": 250_000, "steps": STEPS, "workers": 2}
    for step in range(2, 122, 2):
        at = began + 5 + step * 4
        loss = 2.1 + 4 * math.exp(-step / 25) + 0.05 * math.sin(step)
        yield {
            "event": "step", "time": at, "step": step, "steps": STEPS, "loss": loss, "rate": 1e-3,
            "tokens_per_s": speed * (0.9 + 0.05 * math.cos(step)), "seconds_left": (STEPS - step) * 4.0,
        }  # fmt: skip
        if step % 20 == 0:
            first, last = (step - 20) * BATCH, step * BATCH
            yield {
                "event": "ledger", "time": at, "generation": 1 + (step > 60), "steps": [step - 20, step],
                "samples": [first, last], "digest": digest_of_range(first, last),
                "spent": {"compute": 62.0, "communication": 9.0, "data": 2.0, "checkpoint": 3.0},
            }  # fmt: skip
            yield {"event": "evaluation", "time": at, "step": step, "loss": loss + 0.08, "perplexity": 9.0}
            yield {
                "event": "sample",
                "time": at,
                "step": step,
                "text": f"The moon of step {step} 月落乌啼 rises.",
            }
        if step == 60:
            lost = {
                "worker": "w2",
                "node": "node0",
                "rank": 1,
                "generation": 1,
                "how": "silent",
                "silent_s": 3.0,
            }
            yield {"event": "lost", "time": at + 1, **lost}
            settled = {"step": 60, "samples": 60 * BATCH, "source": "memory", "rolled_back": 0}
            yield {"event": "settled", "time": at + 3, "generation": 2, **settled}


def register_models(home: Path, folder: Path) -> None:
    registry = Registry(home)
    for version, loss in ((1, 2.61), (2, 2.34)):
        writer = DirectoryWriter(StoreDir(folder / str(version)))
        writer.write("model.safetensors", b"w" * 1000 * version)
        writer.write("config.json", json.dumps({"model_type": "llama", "dtype": "float32"}).encode())
        lineage = {
            "job": {"name": "poems", "model": {}}, "shape": {"family": "llama", "layers": 4, "width": 64},
            "parameters": 250_000, "corpus": "corpora/poems", "corpus_digest": "8b1a9953c4611296",
            "steps": STEPS, "tokens": 1_600_000, "code": "0.1",
            "metrics": {"loss": loss, "perplexity": math.exp(loss)},
        }  # fmt: skip
        writer.write("windlass.json", json.dumps(lineage).encode())
        writer.commit({"kind": "model"})
        registry.register("poems", folder / str(version))
    registry.promote("poems@1")


def spend_some(keys: ApiKeys) -> None:
    """Give a key limits, and lease some of its tokens to a gateway."""
    limits = Limits(tokens_per_day=1_000_000, requests_per_second=50.0)
    key = keys.limit("user", limits, Actor("", "the tests"))
    name, rule = Name(f"key:{key.id}", "tokens_day"), rules_of(limits)["tokens_day"]
    renew_leases(keys._database, "gateway", {name: (rule, LeaseRequest(want=400_000))}, term_s=600)


class At(Protocol):
    """Opens a view with a key of the stage."""

    def __call__(self, view: str, key: str = "admin", **how: Any) -> AbstractContextManager[Page]: ...


@pytest.fixture
def at(opened: Any, stage: Stage) -> At:
    def opens(view: str, key: str = "admin", **how: Any) -> AbstractContextManager[Page]:
        size = {"width": 1200, "height": 900}
        page: AbstractContextManager[Page] = opened(
            f"{stage.url}/#/{view}", key=stage.tokens[key], viewport=size, **how
        )
        return page

    return opens


def confirm(page: Page, button: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def put_away(page: Page) -> None:
    """Close the dialog that shows a key. It is hidden at once, but leaves the document a little later."""
    page.get_by_role("button", name="I have copied it").click()
    expect(page.locator("dialog")).to_have_count(0)


def test_the_list_of_runs_leads_to_curves_that_grow_with_the_journal(
    at: At, stage: Stage, complaints: list[str]
) -> None:
    with at("runs") as page, locked(stage.run(2) / ".lock", "the run"):
        expect(page.get_by_role("row", name="poems/2")).to_contain_text("running")
        page.get_by_role("link", name="poems/2").click()
        expect(page.get_by_role("heading", name="poems/2")).to_be_visible()
        loss = page.get_by_role("img", name="Loss.")
        expect(loss).to_have_attribute("aria-label", re.compile("training .*held-out text .*predicted"))
        expect(page.get_by_role("region", name="Predicted and measured")).to_contain_text("−9%")
        expect(page.get_by_role("heading", name="Goodput")).to_be_visible()
        expect(page.get_by_text("fell silent")).to_be_visible()
        expect(page.get_by_text("The moon of step 120")).to_be_visible()
        stage.tell(2, event="step", step=122, steps=STEPS, loss=1.25, tokens_per_s=900.0)
        expect(loss).to_have_attribute("aria-label", re.compile("training 1.25"))
        loss.focus()
        page.keyboard.press("End")
        expect(page.locator(".chart-tip").first).to_have_text("step 122 · training 1.25")
        page.get_by_text("As a table").first.click()
        expect(page.locator(".chart-table").first.get_by_role("row").last).to_contain_text("1.25")
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_text("was used exactly once")).to_be_visible()
    assert complaints == []


def test_a_run_is_paused_only_after_confirmation(
    at: At, stage: Stage, complaints: list[str], artifacts: Path
) -> None:
    with (
        at("runs/poems/2") as page,
        locked(stage.run(2) / ".lock", "the run"),
    ):
        pause = page.get_by_role("button", name="Pause")
        pause.click()
        expect(page.get_by_role("dialog")).to_contain_text("waits at its next step boundary")
        page.screenshot(path=artifacts / "view-runs-dialog.png")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(pause).to_be_focused()
        assert not (stage.run(2) / SETTINGS).exists()
        pause.click()
        confirm(page, "Pause")
        requested = stage.requested(2)
        assert (requested["paused"], requested["by"]) == (True, "admin")
        expect(page.locator(".answers")).to_contain_text(f"request {requested['id']} by admin")
        event = {"step": 124, "id": requested["id"], "by": "admin", "undoes": None}
        stage.tell(2, event="settings", changed={"paused": True}, before={"paused": False}, **event)
        expect(page.locator(".answers")).to_contain_text("Taken after step 124")
        page.get_by_role("button", name="Resume").click()
        confirm(page, "Resume")
        assert stage.requested(2)["paused"] is False
    assert complaints == []


def test_a_setting_is_changed_and_undone_and_what_cannot_be_is_refused_in_the_dialog(
    at: At, stage: Stage, complaints: list[str]
) -> None:
    with at("runs/poems/1") as page:
        page.get_by_role("button", name="Change a setting").click()
        page.get_by_role("dialog").get_by_label("Setting").select_option("steps")
        page.get_by_label("New value").fill("10")
        page.get_by_role("dialog").get_by_role("button", name="Change a setting").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("steps")
        page.get_by_role("dialog").get_by_label("Setting").select_option("learning_rate")
        page.get_by_label("New value").fill("0.0001")
        confirm(page, "Change a setting")
        assert stage.requested(1)["learning_rate"] == 1e-4
        expect(page.locator(".answers")).to_contain_text("started again")
        page.get_by_role("button", name="Undo").click()
        confirm(page, "Undo")
        assert stage.requested(1)["learning_rate"] is None
    assert [text for text in complaints if "400" not in text] == []


def test_an_elastic_run_is_scaled(at: At, stage: Stage, complaints: list[str]) -> None:
    (stage.run(1) / "coordinator").mkdir()
    with at("runs/poems/1") as page:
        page.get_by_role("button", name="Workers").click()
        page.get_by_role("dialog").get_by_label("Workers").fill("3")
        confirm(page, "Workers")
        requested = json.loads((stage.run(1) / "workers.json").read_bytes())
        assert (requested["workers"], requested["by"]) == (3, "admin")
        stage.tell(1, event="scaled", workers=3, by="admin", id=requested["id"])
        page.reload()
        expect(page.get_by_role("heading", name="poems/1")).to_be_visible()
    (stage.run(1) / "coordinator").rmdir()
    assert complaints == []


def test_a_plan_follows_its_form(at: At, stage: Stage, complaints: list[str]) -> None:
    with at("plan") as page:
        chosen = page.get_by_role("region", name="Chosen layout")
        expect(chosen).to_contain_text("64 × H100-SXM5")
        before = chosen.inner_text()
        slider = page.get_by_label("Devices, slider")
        slider.focus()
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
            page.keyboard.press("PageDown")
        expect(chosen).not_to_contain_text("64 × H100-SXM5")
        assert chosen.inner_text() != before
        page.get_by_label("Devices", exact=True).fill("16")
        page.get_by_label("What if there were more devices?").fill("16")
        page.keyboard.press("Tab")
        expect(page.get_by_role("region", name="Why")).to_contain_text("With 16 devices more")
        expect(page.get_by_role("img", name="Memory of the fullest device")).to_be_visible()
        front = page.get_by_role("img", name="Time and cost")
        front.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".chart-tip").nth(1)).to_contain_text("dp=")
        page.get_by_label("Deadline", exact=True).fill("soon")
        page.keyboard.press("Tab")
        expect(page.get_by_role("alert")).to_contain_text("soon")
    assert complaints == []


def test_an_infeasible_plan_is_explained_and_its_fix_is_one_click_away(
    at: At, stage: Stage, complaints: list[str], artifacts: Path
) -> None:
    with at("plan") as page:
        page.get_by_label("Weights", exact=True).fill("70B")
        page.get_by_label("Devices", exact=True).fill("1")
        page.keyboard.press("Tab")
        obstacle = page.locator(".obstacle")
        expect(obstacle).to_contain_text("Limited by memory")
        expect(obstacle).to_contain_text("fits nowhere")
        page.screenshot(path=artifacts / "view-plan-no-solution.png", full_page=True)
        obstacle.get_by_role("button", name="devices").first.click()
        expect(page.get_by_role("region", name="Chosen layout")).to_be_visible()
        expect(obstacle).to_have_count(0)
        assert int(page.get_by_label("Devices", exact=True).input_value()) > 1
    assert complaints == []


def test_a_version_is_promoted_and_rolled_back(at: At, stage: Stage, complaints: list[str]) -> None:
    aliases = stage.home / "models" / "poems" / "aliases.json"
    with at("models") as page:
        row = page.get_by_role("row", name="poems@2")
        expect(row).to_contain_text("2.34")
        row.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("dialog")).to_contain_text("@prod is version 1 now")
        confirm(page, "Promote")
        expect(row).to_contain_text("@prod")
        assert json.loads(aliases.read_text()) == {"prod": 2, "previous": 1}
        page.get_by_role("button", name="Roll back").click()
        confirm(page, "Roll back")
        expect(page.get_by_role("row", name="poems@1")).to_contain_text("@prod")
        assert json.loads(aliases.read_text())["prod"] == 1
    assert complaints == []


def test_a_roll_out_is_started_and_aborted(
    at: At, stage: Stage, complaints: list[str], artifacts: Path
) -> None:
    with at("models") as page:
        page.get_by_role("row", name="poems@2").get_by_role("button", name="Roll out").click()
        page.get_by_label("Kind").select_option("shadow")
        confirm(page, "Start the roll-out")
        rollouts = page.get_by_role("region", name="Roll-outs")
        expect(rollouts).to_contain_text("waiting")
        page.screenshot(path=artifacts / "view-models-roll-out.png", full_page=True)
        rollouts.get_by_role("button", name="Abort").click()
        confirm(page, "Abort")
        expect(page.locator(".done")).to_contain_text("Requested")
    (requested,) = admin(stage).get("/admin/rollouts").json()["data"]
    assert (requested["candidate"], requested["kind"], requested["command"]) == ("poems@2", "shadow", "abort")
    assert complaints == []


def test_a_key_is_shown_once_limited_rotated_and_revoked(at: At, stage: Stage, complaints: list[str]) -> None:
    with at("service") as page:
        page.get_by_role("button", name="Make a key").click()
        page.get_by_label("Name", exact=True).fill("visitor")
        page.get_by_role("dialog").get_by_role("button", name="Make", exact=True).click()
        token = page.locator(".token").inner_text()
        assert models_for(stage, token) == 200
        put_away(page)
        assert token not in page.content()
        row = page.get_by_role("region", name="Keys").get_by_role("row", name="visitor")
        row.get_by_role("button", name="Limits").click()
        page.get_by_label("Concurrent requests").fill("2")
        confirm(page, "Set")
        expect(row).to_contain_text("Concurrent requests 2")
        row.get_by_role("button", name="Rotate").click()
        page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
        other = page.locator(".token").inner_text()
        put_away(page)
        assert (models_for(stage, token), models_for(stage, other)) == (401, 200)
        row.get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
        confirm(page, "Revoke")
        expect(row).to_have_count(0)
        assert models_for(stage, other) == 401
        expect(page.get_by_role("region", name="Audit log")).to_contain_text("key.revoke")
        expect(page.get_by_text("The log is intact")).to_be_visible()
    assert complaints == []


def test_replicas_and_usage_are_shown(at: At, stage: Stage, complaints: list[str]) -> None:
    with at("service") as page:
        expect(page.get_by_role("region", name="Replicas").first).to_contain_text("tiny@3")
        usage = page.get_by_role("row", name="key user tokens per day")
        expect(usage).to_contain_text("of 1M")
    assert complaints == []


def test_a_key_without_the_scope_admin_sees_none_of_it(at: At, stage: Stage, complaints: list[str]) -> None:
    with at("runs", key="user") as page:
        for view in ("runs", "plan", "models", "service"):
            page.goto(f"{stage.url}/#/{view}")
            expect(page.get_by_role("heading", level=1)).to_have_text(
                {"plan": "Planner"}.get(view, view.title())
            )
            expect(page.get_by_role("alert")).to_contain_text("may not see this view")
            expect(page.get_by_role("navigation").get_by_role("link")).to_have_count(3)
    assert complaints == []


def test_a_gateway_that_runs_alone_says_what_it_does_not_have(
    opened: Any, guarded: Any, given_keys: Any
) -> None:
    with opened(f"{guarded.url}/#/service", key=given_keys.tokens["admin"]) as page:
        expect(page.get_by_text("runs alone and keeps no records")).to_be_visible()
        expect(page.get_by_role("region", name="Replicas")).to_contain_text("tiny@3")
        page.get_by_role("link", name="Runs").click()
        expect(page.get_by_role("alert")).to_contain_text("without a control process")


@pytest.mark.parametrize("language", ["en-GB", "zh-CN"])
def test_every_view_exists_in_both_languages_and_fits_a_small_phone(
    at: At, stage: Stage, complaints: list[str], artifacts: Path, language: str
) -> None:
    with at("runs", locale=language) as page:
        for view in VIEWS:
            show(page, stage, view)
            assert (view, missing_words(page)) == (view, [])
            name = f"view-{view.replace('/', '-')}-{language[:2]}"
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=artifacts / f"{name}-{scheme}.png", full_page=True)
            page.set_viewport_size({"width": 360, "height": 760})
            page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")  # charts follow
            page.screenshot(path=artifacts / f"{name}-phone.png", full_page=True)
            page.set_viewport_size({"width": 1200, "height": 900})
    assert complaints == []


def test_every_admin_view_is_accessible(at: At, stage: Stage, axe: Any) -> None:
    with at("runs") as page:
        for view in VIEWS:
            show(page, stage, view)
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                axe(page)
        page.get_by_role("button", name="Make a key").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        axe(page)


def show(page: Page, stage: Stage, view: str) -> None:
    """Go to a view and wait for what it shows last."""
    page.goto(f"{stage.url}/#/{view}")
    place = page.locator("#nav a[aria-current=page]")
    expect(place).to_have_attribute("href", f"#/{view.partition('/')[0]}")  # the view before is gone
    last = {"runs": "table", "plan": "figure", "models": "table", "service": "table.list code"}
    expect(page.locator(last.get(view, ".sample")).first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def missing_words(page: Page) -> list[str]:
    """Words that a view has no text for are shown as their keys; what the server says is none of them."""
    text = page.evaluate(
        """() => [...document.querySelectorAll("main *")]
            .filter((each) => !each.closest("code, svg, main [lang=en], .chart-tip, .chart-table, .sample"))
            .flatMap((each) => [...each.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE))
            .map((node) => node.data).join("\\n")"""
    )
    return re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[a-z]{2,}[A-Z]\w+\b", text)


def admin(stage: Stage) -> httpx.Client:
    headers = {"authorization": f"Bearer {stage.tokens['admin']}"}
    return httpx.Client(base_url=stage.url, headers=headers, timeout=PATIENCE_S)


def models_for(stage: Stage, token: str) -> int:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{stage.url}/v1/models", headers=headers, timeout=PATIENCE_S).status_code
