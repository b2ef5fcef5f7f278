"""`windlass plan --fleet`: what a team asks before it spends money, and how it is told that it cannot be."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main

pytestmark = pytest.mark.slow

JOB = """
[corpus]
sources = ["not-there.txt"]
tokenizer.vocabulary = 128256
[model]
layers = 32
width = 4096
heads = 32
kv_heads = 8
ffn_width = 14336
context = 4096
tied = false
[train]
tokens = "100B"
batch_sequences = 512
"""
EXPERTS = """
layers = 32
width = 4096
heads = 32
kv_heads = 8
head_width = 128
ffn_width = 14336
gated = true
vocabulary = 32000
tied = false
experts = 8
top_k = 2
expert_width = 14336
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    return "job.toml"


def asked(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> Any:
    assert main(["plan", *argv, "--search", "greedy", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_plan_says_layout_time_money_and_why(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", job, "--fleet", "64xH100-SXM5"]) == 0
    text = capsys.readouterr().out
    assert "8.03B weights learn 100B tokens in" in text
    assert "64 x H100-SXM5, $" in text
    assert re.search(r"A step takes .*: \d+% computing", text)
    assert "failures are to be expected" in text
    assert "No layout beats these in time, money and memory at once" in text


def test_a_plan_as_data_is_consistent(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = asked(capsys, job, "--fleet", "64xH100", "--top", "3")
    assert facts["format"] == "windlass-plan-1"
    assert facts["outcome"] == "plan"
    assert facts["no_solution"] is None
    times = [layout["seconds"] for layout in facts["layouts"]]
    assert times == sorted(times)
    assert len(times) == 3
    for layout in facts["layouts"]:
        choices = layout["choices"]
        assert choices["dp"] * choices["tp"] * choices["pp"] * choices["cp"] == layout["devices"] <= 64
        assert sum(layout["step_parts_s"].values()) == pytest.approx(layout["step_s"])
        assert sum(layout["memory_parts_bytes"].values()) == pytest.approx(layout["memory_bytes"])
        assert layout["memory_range_bytes"][1] <= layout["limit_bytes"]
        assert 0 < layout["loss_range"][0] < layout["loss"] < layout["loss_range"][1]
    assert facts["model"]["steps"] == -(-100_000_000_000 // (512 * 4096))
    assert {point["devices"] for point in facts["by_devices"]} >= {64, 32, 16}


def test_the_fewest_devices_that_are_in_time_are_found(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = asked(capsys, job, "--fleet", "256xH100")["layouts"][0]["seconds"]
    facts = asked(capsys, job, "--fleet", "256xH100", "--deadline", f"{round(2.5 * whole)}s")
    assert facts["layouts"][0]["seconds"] <= 2.5 * whole
    told = " ".join(facts["explanation"])
    found = re.search(r"(\d+) x H100-SXM5 would be enough to be ready within", told)
    assert found is not None
    enough = int(found[1])
    times = {point["devices"]: point["seconds"] for point in facts["by_devices"]}
    assert times[enough] <= 2.5 * whole
    assert enough < 256
    assert all(seconds > 2.5 * whole for devices, seconds in times.items() if devices < enough)


def test_the_least_memory_in_time_is_not_the_least_memory(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--fleet", "16xH100", "--objective", "memory")
    least = asked(capsys, job, *small)["layouts"][0]
    quick = asked(capsys, job, "--fleet", "16xH100")["layouts"][0]["seconds"]
    early = asked(capsys, job, *small, "--deadline", f"{round(1.1 * quick)}s")["layouts"][0]
    assert early["seconds"] <= 1.1 * quick < least["seconds"]
    assert early["memory_bytes"] > least["memory_bytes"]


def test_a_budget_takes_fewer_devices_than_time_alone_would(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    free = asked(capsys, job, "--fleet", "1024xH100")
    cheapest = min(point["dollars"] for point in free["by_devices"])
    facts = asked(capsys, job, "--fleet", "1024xH100", "--budget", str(1.02 * cheapest))
    assert facts["layouts"][0]["devices"] < 1024
    low, high = facts["layouts"][0]["dollars"]
    assert (low * high) ** 0.5 <= 1.02 * cheapest


def test_more_devices_are_reported_even_if_the_batch_must_grow(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = asked(capsys, job, "--fleet", "64xH100", "--more", "64")["explanation"]
    assert any(re.match(r"With 64 devices more it would take .*\(-\d+%\)", sentence) for sentence in told)
    odd = asked(capsys, job, "--fleet", "64xH100", "--more", "8")["explanation"]
    assert any("a batch of 576 instead of 512 sequences" in sentence for sentence in odd)


def test_idle_devices_are_reported_with_a_batch_that_uses_them(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = asked(capsys, job, "--fleet", "56xH100")
    assert any("devices stay idle" in told for told in facts["explanation"])
    way = next(way for way in facts["ways"] if way["way"] == "batch")
    better = asked(
        capsys,
        job,
        "--fleet",
        "56xH100",
        "--set",
        f"train.batch_sequences={way['changes']['batch_sequences']}",
    )
    assert better["layouts"][0]["seconds"] < 0.95 * facts["layouts"][0]["seconds"]


def test_unequal_machines_share_the_batch_by_speed(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    best = asked(capsys, job, "--fleet", "64xH100+64xA100")["layouts"][0]
    shares = {member["device"]: member["share"] for member in best["team"]}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["H100-SXM5"] > shares["A100-SXM4-80GB"]


def test_experts_are_planned_from_a_file_of_sizes(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sizes.toml").write_text(EXPERTS)
    facts = asked(capsys, job, "--fleet", "64xH100", "--sizes", "sizes.toml")
    assert facts["model"]["experts"] == 8
    assert facts["model"]["parameters"] == pytest.approx(46.7e9, rel=0.01)


def test_weights_alone_are_enough_to_say_which_model(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(job).write_text('[model]\nparameters = "70B"\ncontext = 4096\n[train]\ntokens = "1T"\n')
    facts = asked(capsys, job, "--fleet", "256xH100")
    assert facts["model"]["parameters"] == pytest.approx(70e9, rel=0.05)
    assert facts["model"]["global_batch"] * 4096 == pytest.approx(2e6, rel=0.6)


def test_a_report_is_written_where_requested(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", job, "--fleet", "8xH100", "--html", "plan.html", "--search", "greedy"]) == 0
    page = (tmp_path / "plan.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "H100-SXM5" in page


@pytest.mark.parametrize(
    ("argv", "binding", "fix"),
    [
        (["--fleet", "1xT4"], "memory", "devices"),
        (["--fleet", "8xH100", "--layout", "tp=1,pp=1,cp=1,sharding=none"], "memory", "sharding"),
        (["--fleet", "8xH100", "--deadline", "10d"], "time", "devices"),
        (["--fleet", "64xH100", "--budget", "1000"], "money", "price"),
        (["--fleet", "8xH100", "--layout", "tp=3"], "divisibility", "tp"),
    ],
)
def test_no_solution_names_what_is_in_the_way_and_the_smallest_fix(
    job: str, capsys: pytest.CaptureFixture[str], argv: list[str], binding: str, fix: str
) -> None:
    facts = asked(capsys, job, *argv, code=2)
    assert facts["outcome"] == "no solution"
    assert facts["layouts"] == []
    assert facts["no_solution"]["binding"] == binding
    assert fix in [way["way"] for way in facts["no_solution"]["fixes"]]


def test_devices_that_always_fail_never_finish(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.toml").write_text('[[machines]]\ndevice = "H100"\ncount = 8\nmtbf = "10m"\n')
    none = asked(capsys, job, "--fleet", "fleet.toml", code=2)["no_solution"]
    assert none["binding"] == "time"
    assert "would never end" in none["sentence"]


def test_limits_that_go_only_one_by_one_are_reported_as_such(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    points = asked(capsys, job, "--fleet", "512xH100")["by_devices"]
    budget = 1.01 * min(point["dollars"] for point in points)
    deadline = round(1.02 * min(point["seconds"] for point in points))
    both = ("--budget", str(budget), "--deadline", f"{deadline}s")
    facts = asked(capsys, job, "--fleet", "512xH100", *both, code=2)
    assert facts["no_solution"]["binding"] == "money"
    assert "of those that are in time" in facts["no_solution"]["sentence"]
    later = next(fix for fix in facts["no_solution"]["fixes"] if fix["way"] == "deadline")
    assert later["seconds"] > deadline


def test_no_solution_is_said_in_a_sentence(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", job, "--fleet", "1xT4"]) == 2
    told = capsys.readouterr()
    assert "windlass: no solution: A model of 8.03B weights fits nowhere" in told.err
    assert "changes that would help, the smallest first" in told.out
    assert re.search(r"- \d+ devices instead of 1: it takes", told.out)


@pytest.mark.slow
def test_a_batch_that_cannot_be_divided_further_grows_in_the_fix(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fixes = asked(capsys, job, "--fleet", "256xH100", "--deadline", "45m", code=2)["no_solution"]["fixes"]
    changes = next(fix["changes"] for fix in fixes if fix["way"] == "devices")
    assert changes["batch_sequences"] > 512
    assert changes["devices"] > 512


def test_a_fix_that_is_reported_works(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ["--fleet", "8xH100", "--deadline", "10d"]
    fixes = asked(capsys, job, *asked_for, code=2)["no_solution"]["fixes"]
    devices = next(fix["changes"]["devices"] for fix in fixes if fix["way"] == "devices")
    facts = asked(capsys, job, "--fleet", f"{devices}xH100", "--deadline", "10d")
    assert facts["layouts"][0]["seconds"] <= 10 * 86400


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--fleet", "0xH100"], "no devices"),
        (["--fleet", "8xH1000"], "did you mean 'H100-SXM5'?"),
        (["--fleet", "8xH100", "--price", "-1"], "-1 to -1 is not a price"),
        (["--fleet", "8xH100", "--deadline", "2020-01-01"], "in the past"),
        (["--fleet", "8xH100", "--budget", "-5"], "more than zero dollars"),
        (["--fleet", "8xH100", "--set", "train.tokens=0"], "tokens"),
        (["--fleet", "8xH100", "--workers", "2"], "--workers cannot be used with --fleet"),
        (["--fleet", "8xH100", "--precision", "float4"], "does not compute in float4"),
        (["--fleet", "8xH100", "--precision", "bf16"], "unknown precision"),
        (["--fleet", "8xH100", "--software", "megatron"], "unknown software"),
        (["--fleet", "8xH100", "--sizes", "nowhere.toml"], "no such file of sizes"),
        (["--fleet", "8xH100", "--top", "0"], "--top must be at least 1"),
        (["--deadline", "3d"], "--deadline needs --fleet"),
        (["--html", "plan.html"], "--html needs --fleet"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    job: str, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    assert main(["plan", job, *argv]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[model]\nparameters = "7B"\n', "does not say how much to train"),
        ('[train]\ntokens = "7B"\n', "does not say which model"),
        ('[model]\nstart_from = "base"\n[train]\nsteps = 9\n', "start_from"),
        ('[corpus.tokenizer]\nkind = "char"\n[model]\nparameters = "7B"\n[train]\nsteps = 9\n', "vocabulary"),
    ],
)
def test_a_job_that_leaves_too_much_open_is_refused(
    job: str, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    Path(job).write_text(text)
    assert main(["plan", job, "--fleet", "8xH100"]) == 2
    assert reason in capsys.readouterr().err


def test_a_layout_of_the_job_is_left_aside_and_that_is_said(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(job).write_text(JOB + "[layout]\ndp = 2\n")
    told = asked(capsys, job, "--fleet", "8xH100")["explanation"]
    assert any("[layout] of the job is ignored" in sentence for sentence in told)


def test_a_plan_for_a_fleet_needs_no_torch(job: str) -> None:
    blocked = (
        "import sys; sys.modules['torch'] = None\n"
        "from windlass.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [
        sys.executable,
        "-c",
        blocked,
        "plan",
        job,
        "--fleet",
        "8xH100",
        "--search",
        "greedy",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "plan"
