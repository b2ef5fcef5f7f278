"""The image recipe agrees with what pods expect; deploy/build builds the image, and deploy/check runs it."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from windlass.cluster.kubernetes.pod import SCRATCH, USER

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
IMAGE = "localhost/windlass:latest"


def test_the_scripts_are_shell() -> None:
    for name in ("build", "check"):
        subprocess.run(["sh", "-n", str(DEPLOY / name)], check=True)


def test_the_image_has_the_user_and_the_places_that_pods_have() -> None:
    told = (DEPLOY / "Containerfile").read_text()
    assert f"USER {USER}:{USER}" in told
    assert f"HOME={SCRATCH} TMPDIR={SCRATCH}" in told
    assert f"--user {USER}:{USER}" in (DEPLOY / "check").read_text()


def test_the_image_and_its_wheels_have_the_same_extras_and_all_exist() -> None:
    found = {
        tuple(re.findall(r"\[([a-z0-9,]+)\]\"", (DEPLOY / name).read_text())[-1].split(","))
        for name in ("Containerfile", "build")
    }
    assert len(found) == 1
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(found.pop()) <= extras.keys()


def test_the_control_plane_runs_the_image_of_the_recipe() -> None:
    assert f"image: {IMAGE.partition(':')[0]}\n" in (DEPLOY / "control" / "control.yaml").read_text()


@pytest.mark.slow
def test_the_image_answers() -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    there = subprocess.run(["podman", "image", "exists", IMAGE], check=False)
    if there.returncode:
        pytest.skip(f"{IMAGE} was not built; deploy/build does it, in minutes")
    run = ["podman", "--runtime", "runc", "run", "--rm", "--network", "none", "--read-only"]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # more than we have would be refused
    limits = ["--ulimit", f"nofile={files}", "--ulimit", "nproc=4096"]
    done = subprocess.run([*run, *limits, IMAGE, "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("windlass "), done.stderr
