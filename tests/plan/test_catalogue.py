"""The table of devices: whole, sane, and found by any of its names."""

import csv
import re
from pathlib import Path

import pytest

from windlass.plan.cost.catalogue import TABLE, device_named, devices
from windlass.spec.errors import NotFound

SHARED = Path(__file__).resolve().parents[3] / "shared" / "planner" / "hardware.csv"


def test_every_device_names_its_source() -> None:
    assert TABLE.read_text().count("\nsource = ") == len(devices())


@pytest.mark.parametrize("name", sorted(devices()))
def test_figures_are_of_the_right_order(name: str) -> None:
    device = devices()[name]
    assert 1e12 < max(device.peak_flops.values()) < 1e17
    assert 1e10 <= device.memory_bytes < 1e12
    assert device.network_bytes_s <= device.link_bytes_s <= device.memory_bytes_s
    if device.reachable_flops is not None:
        assert device.reachable_flops < device.peak_flops["bfloat16"]
    if device.dollars_h is not None:
        assert 0 < device.dollars_h[0] <= device.dollars_h[1]


@pytest.mark.parametrize(
    ("name", "own"),
    [("H100-80GB-SXM", "H100-SXM5"), ("h100", "H100-SXM5"), ("A100-80GB-SXM", "A100-SXM4-80GB")],
)
def test_a_device_is_found_by_its_other_names(name: str, own: str) -> None:
    assert device_named(name).name == own


def test_a_misspelt_device_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'H200-SXM'"):
        device_named("H200-SMX")


def test_the_table_says_what_the_shared_one_says() -> None:
    if not SHARED.exists():
        pytest.skip("needs planner/hardware.csv of the shared data, which is not on this machine")
    for row in csv.DictReader(SHARED.open()):
        name = re.split(r" \(| ", row["accelerator"].replace("-16/32GB", "-32GB"))[0]
        if name in devices():
            peak = float(re.match(r"~?([\d.]+)", row["bf16_dense_tflops"])[1])  # type: ignore[index]
            figures = devices()[name].peak_flops
            assert figures.get("bfloat16", figures.get("float16")) == peak * 1e12, name
