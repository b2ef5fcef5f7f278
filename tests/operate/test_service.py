"""What the processes of a service are told."""

from pathlib import Path

import pytest

from windlass.operate.service import Item, Offer, engine_command, gateway_args
from windlass.spec.errors import BadInput
from windlass.spec.serve import Serve

SOCKET = Path("/run/s")


def pairs(args: list[str], option: str) -> list[str]:
    return [args[place + 1] for place, arg in enumerate(args) if arg == option]


def test_one_model_is_told_with_its_names() -> None:
    offer = Offer("a@2", Path("/a"), Serve(port=0), ("prod",))
    args = gateway_args(offer, SOCKET, Path("/run/serve.json"))
    assert pairs(args, "--model") == ["/a"]
    assert pairs(args, "--name") == ["a@2"]
    assert pairs(args, "--alias") == ["a@prod"]
    module, args = engine_command(offer, SOCKET)
    assert module == "windlass.serve.engine"
    assert pairs(args, "--name") == ["a@2"]
    assert "--memory" not in args


def test_several_models_and_their_adapters_are_told_to_both_processes() -> None:
    other = Item("b", Path("/b"), adapters={"poet": Path("/p")})
    offer = Offer("a@2", Path("/a"), Serve(memory="1GiB"), others=(other,))  # type: ignore[arg-type]
    args = gateway_args(offer, SOCKET, Path("/run/serve.json"))
    assert pairs(args, "--name") == ["a@2", "b"]
    assert pairs(args, "--adapter") == ["b:poet"]
    _, args = engine_command(offer, SOCKET)
    assert pairs(args, "--model") == ["/a", "/b"]
    assert pairs(args, "--adapter") == ["b:poet=/p"]
    assert pairs(args, "--memory") == [str(1 << 30)]


def test_vllm_takes_the_place_of_our_engine() -> None:
    serve = Serve(engine="vllm", engine_args="--dtype half", engine_executable="/opt/vllm")
    offer = Offer("a", Path("/a"), serve, adapters={"poet": Path("/p")})
    module, args = engine_command(offer, SOCKET)
    assert module == "windlass.serve.vllm"
    assert {"--executable=/opt/vllm", "--engine-args=--dtype half", "--adapter=poet=/p"} <= set(args)


def test_vllm_serves_one_model_at_a_time() -> None:
    offer = Offer("a", Path("/a"), Serve(engine="vllm"), others=(Item("b", Path("/b")),))
    with pytest.raises(BadInput, match="one model"):
        engine_command(offer, SOCKET)
