from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.http.errors import ApiError
from windlass.serve.gateway.schemas.requests import ChatMessage
from windlass.serve.gateway.text.served_model import load_served, names_of
from windlass.serve.gateway.text.templates import compile_template, default_template
from windlass.spec.errors import BadInput, NotFound

TALK = [ChatMessage(role="system", content="be brief"), ChatMessage(role="user", content="hi")]


def test_a_model_without_role_tokens_reads_plain_words() -> None:
    template = default_template(role_tokens=False)
    assert template.render(TALK) == "system: be brief\nuser: hi\nassistant:"
    assert "\nuser:" in template.stops


def test_a_model_with_role_tokens_reads_them(model_dir: Path) -> None:
    served = load_served(model_dir, "tiny")
    assert served.template.render(TALK) == "<|system|>be brief<|user|>hi<|assistant|>"
    assert set(served.stop_tokens) == {0, 1, 2, 3}


def test_the_models_own_template_wins_and_sees_special_tokens(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m['content'] }}]{% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_served(tmp_path, "m").template.render(TALK) == "<s>[be brief][hi]"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_served(tmp_path, "m").template.render(TALK) == "file"


def test_a_template_may_refuse_and_its_reason_reaches_the_client() -> None:
    template = compile_template("{{ raise_exception('no system turn') }}", where="x", special={})
    with pytest.raises(ApiError, match="no system turn") as caught:
        template.render(TALK)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[7].content }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_can_neither_escape_nor_change_nor_crash_anything(source: str) -> None:
    template = compile_template(source, where="x", special={})
    with pytest.raises(ApiError):
        template.render(TALK)


def test_a_template_that_is_no_jinja_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(BadInput, match=r"chat_template\.jinja"):
        load_served(tmp_path, "m")


def test_a_directory_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such model directory"):
        load_served(tmp_path / "none", "m")


def test_a_configuration_that_is_no_json_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config\.json"):
        load_served(tmp_path, "m")


def test_a_model_answers_to_name_version_and_alias() -> None:
    assert names_of("m@3", ["prod", "m@canary"]) == {"m", "m@3", "m@prod", "m@canary"}


def test_the_block_that_marks_what_the_model_wrote_is_only_a_scope() -> None:
    inside = "{% set a = 2 %}{{ messages[1].content }}{{ a }}"
    source = f"{{% set a = 1 %}}{{% generation %}}{inside}{{% endgeneration %}}{{{{ a }}}}"
    assert compile_template(source, where="x", special={}).render(TALK) == "hi21"


def test_json_is_written_with_the_options_that_published_templates_give() -> None:
    source = "{% set v = {'b': 'é', 'a': '<x>'} %}"
    source += "{{ v | tojson }}|{{ v | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}"
    rendered = compile_template(source, where="x", special={}).render(TALK)
    assert rendered == '{"b": "é", "a": "<x>"}|{"a":"<x>","b":"\\u00e9"}'
