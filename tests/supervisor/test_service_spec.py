"""What the processes of a service are told."""

from pathlib import Path

import pytest

from windlass.spec.errors import BadInput
from windlass.spec.serve import Serve
from windlass.supervisor.desired import Item
from windlass.supervisor.service_spec import (
    ServiceSpec,
    engine_command,
    gateway_args,
    threads_each,
    write_settings,
)

SOCKET = Path("/run/s")


def pairs(args: list[str], option: str) -> list[str]:
    return [args[place + 1] for place, arg in enumerate(args) if arg == option]


def test_several_models_and_their_adapters_are_passed_to_the_engine() -> None:
    other = Item("b", Path("/b"), adapters={"poet": Path("/p")})
    offer = ServiceSpec("a@2", Path("/a"), Serve(memory="1GiB"), others=(other,))  # type: ignore[arg-type]
    module, args = engine_command(offer.items, offer.serve, SOCKET, 3)
    assert module == "windlass.serve.engine"
    assert pairs(args, "--model") == ["/a", "/b"]
    assert pairs(args, "--name") == ["a@2", "b"]
    assert pairs(args, "--adapter") == ["b:poet=/p"]
    assert pairs(args, "--memory") == [str(1 << 30)]
    assert pairs(args, "--threads") == ["3"]


def test_vllm_takes_the_place_of_our_engine() -> None:
    serve = Serve(engine="vllm", engine_args="--dtype half", engine_executable="/opt/vllm")
    module, args = engine_command([Item("a", Path("/a"), adapters={"poet": Path("/p")})], serve, SOCKET, 1)
    assert module == "windlass.serve.vllm"
    assert {"--executable=/opt/vllm", "--engine-args=--dtype half", "--adapter=poet=/p"} <= set(args)


def test_vllm_serves_one_model_at_a_time() -> None:
    items = [Item("a", Path("/a")), Item("b", Path("/b"))]
    with pytest.raises(BadInput, match="one model"):
        engine_command(items, Serve(engine="vllm"), SOCKET, 1)


def test_a_gateway_gets_its_settings_from_its_supervisor_and_from_a_private_file(tmp_path: Path) -> None:
    file = write_settings(Serve(state="postgresql://u:secret@db/w"), tmp_path / "serve.json")
    args = gateway_args("gateway-1", SOCKET, file, Path("/figures"))
    assert pairs(args, "--supervisor") == [str(SOCKET)]
    assert not any("secret" in arg for arg in args)
    assert file.stat().st_mode & 0o077 == 0
    assert Serve.model_validate_json(file.read_text()).state == "postgresql://u:secret@db/w"


def test_replicas_divide_the_cores_and_each_has_one_at_least() -> None:
    assert threads_each(Serve(), 10_000) == 1
    assert threads_each(Serve(), 1) >= threads_each(Serve(), 2)
    assert threads_each(Serve(threads=3), 10_000) == 3


def test_what_stands_by_runs_and_takes_no_part_of_the_requests() -> None:
    offer = ServiceSpec("a@2", Path("/a2"), Serve(replicas=3), standby=(Item("a@1", Path("/a1")),))
    first, second = offer.wanted.groups
    assert (first.version, first.replicas, first.weight) == ("a@2", 3, 1.0)
    assert (second.version, second.replicas, second.weight) == ("a@1", 1, 0.0)
    assert offer.wanted.standby == ("a@1",)
