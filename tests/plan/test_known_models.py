"""Models that are planned for by name have as many weights as was published."""

import pytest

from windlass.plan.cost.models import model_named, models

BILLIONS = [
    ("Llama-3.2-1B", 1.236),
    ("Llama-3.2-3B", 3.213),
    ("Mistral-7B", 7.242),
    ("Mixtral-8x7B", 46.7),
    ("Qwen2.5-0.5B", 0.494),
    ("Qwen2.5-1.5B", 1.544),
    ("Qwen2.5-7B", 7.616),
    ("Qwen3-0.6B", 0.596),
    ("Qwen3-1.7B", 1.721),
    ("Qwen3-4B", 4.022),
    ("Qwen3-8B", 8.191),
    ("Qwen3-14B", 14.768),
    ("Qwen3-30B-A3B", 30.532),
    ("Gemma-2-2B", 2.614),
    ("Gemma-2-9B", 9.242),
    ("Gemma-3-270M", 0.268),
    ("Gemma-3-1B", 1.0),
    ("Gemma-3-4B", 3.88),
    ("Gemma-3-12B", 11.766),
    ("Phi-3-mini", 3.821),
    ("Phi-4", 14.66),
    ("OLMo-2-7B", 7.299),
    ("SmolLM2-135M", 0.1345),
    ("SmolLM2-360M", 0.3618),
    ("SmolLM2-1.7B", 1.711),
    ("SmolLM3-3B", 3.075),
    ("gpt-oss-20b", 20.91),
    ("GPT-2", 0.1244),
    ("Llama-3.1-8B", 8.03),
    ("Llama-3.1-70B", 70.55),
    ("Qwen3-235B-A22B", 235.09),
    ("gpt-oss-120b", 116.83),
]


@pytest.mark.parametrize(("name", "billions"), BILLIONS)
def test_a_known_model_has_the_published_number_of_weights(name: str, billions: float) -> None:
    assert model_named(name).sizes.parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_names_of_hubs_lead_to_the_same_sizes() -> None:
    assert model_named("Qwen/Qwen3-8B") == model_named("qwen3-8b")
    assert model_named("mistralai/Mixtral-8x7B-Instruct-v0.1").sizes.experts == 8


def test_each_windowed_model_says_how_far_back_its_layers_look() -> None:
    assert all((served.window > 0) == (served.windowed > 0) for served in models().values())
