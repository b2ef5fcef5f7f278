"""Answers of a given form, asked with OpenAI's own client of a real service; and grammars that mean harm."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from windlass.cli.serving.first_key import first_key
from windlass.cli.serving.serve import offer_of
from windlass.corpus.train_tokenizer import train_bpe
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.registry.versions import Registry
from windlass.serve.records.state import state_url
from windlass.spec.serve import Serve
from windlass.spec.shape import DecoderShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.supervisor.supervisor import Supervisor

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
SHAPE = DecoderShape(vocabulary=400, context=512, layers=2, width=32, heads=4, kv_heads=2, ffn_width=48)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "kind": {"enum": ["cat", "dog", "机器"]},
    },
    "required": ["name", "legs", "kind"],
    "additionalProperties": False,
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
HARMFUL = ["a{1000000}", "(.*a.{300}b)|(.*b.{200}a)", "(" * 200 + "a" + "{1,99}){1,99}" * 200]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    home = tmp_path_factory.mktemp("home")
    tokenizer = train_bpe(['{"name": "fox", "legs": 4, "kind": "dog"} ' * 4, "机器学习 naïve " * 4] * 5, 400)
    writer = DirectoryWriter(StoreDir(home / "made"))
    save_model(build(SHAPE, seed=5), writer, special_tokens={"eos_token_id": tokenizer.end_id})
    writer.write("tokenizer.json", tokenizer.json)
    writer.commit({})
    Registry(home).register("base", home / "made")
    serve = Serve(port=0, threads=1, state=state_url(home))
    key = first_key(serve)
    offer, _ = offer_of(home, ["base"], [], serve)
    with Supervisor(offer, home / "logs") as service:
        yield openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, timeout=PATIENCE_S, max_retries=0)


def chat(client: openai.OpenAI, *, seed: int = 1, **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": "a pet"}]
    return client.chat.completions.create(model="base", messages=messages, seed=seed, max_tokens=300, **more)


def test_json_by_a_schema_is_whole_streamed_and_at_once(client: openai.OpenAI) -> None:
    for seed in range(3):
        choice = chat(client, seed=seed, response_format=FORM).choices[0]
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        stream = chat(client, seed=seed, response_format=FORM, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == choice.message.content


def test_expressions_and_choices_are_kept_to(client: openai.OpenAI) -> None:
    text = chat(client, extra_body={"guided_regex": "[a-c]{3}-[0-9]{2}"}).choices[0].message.content
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", text)
    options = ["yes", "no", "机器"]
    assert chat(client, extra_body={"guided_choice": options}).choices[0].message.content in options


def test_a_cut_answer_says_that_it_was_cut(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="base", prompt="a", max_tokens=2, extra_body={"response_format": FORM}
    )
    assert answer.choices[0].finish_reason == "length"


def test_harmful_grammars_are_refused_while_others_are_answered(client: openai.OpenAI) -> None:
    alone = chat(client, seed=7).choices[0].message.content
    with ThreadPoolExecutor() as pool:
        bad = [pool.submit(chat, client, extra_body={"guided_regex": regex}) for regex in HARMFUL]
        good = [pool.submit(chat, client, seed=7) for _ in range(4)]
        assert {one.result().choices[0].message.content for one in good} == {alone}
        outcomes = [one.exception() for one in bad]
    assert isinstance(outcomes[0], openai.BadRequestError)
    assert outcomes[0].code == "invalid_grammar"
    assert all(outcome is None or isinstance(outcome, openai.BadRequestError) for outcome in outcomes)
    jsonschema.validate(json.loads(chat(client, response_format=FORM).choices[0].message.content), SCHEMA)
