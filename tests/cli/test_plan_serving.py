"""What `windlass plan serving` prints, and what it refuses."""

import json

import pytest

from windlass.cli.main import main

ASKED = [
    "plan",
    "serving",
    "--model",
    "Llama-3.1-8B",
    "--device",
    "H100-SXM5",
    "--input",
    "512",
    "--output",
    "128",
]


def test_json_names_the_cheapest_and_all_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--rate", "5", "--ttft", "1s", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["best"] == told["options"][0]
    low, high = told["best"]["ttft_range_s"]
    assert low < told["best"]["ttft_s"] < high


def test_the_table_says_that_an_engine_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--concurrency", "8", "--engine", "homemade"]) == 0
    assert "'homemade' was not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "--rate or --concurrency is missing"),
        (["--rate", "-1"], "must be more than zero"),
        (["--rate", "1", "--concurrency", "1"], "not allowed with"),
        (["--rate", "1", "--ttft", "1ms"], "no layout gives the first token within 1 ms"),
        (["--rate", "1", "--device", "H100-SMX"], "not in the catalogue"),
        (["--rate", "1", "--model", "Lama"], "the sizes of model 'Lama' are not known"),
        (["--judge", "--rows", "nowhere.csv"], "nowhere.csv: no such file"),
    ],
)
def test_a_usage_error_is_one_sentence(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_fits_on_no_device_is_reported_with_what_would_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*ASKED, "--rate", "1", "--model", "DeepSeek-V3", "--device", "L4"]) == 2
    assert "take a smaller format" in capsys.readouterr().err
