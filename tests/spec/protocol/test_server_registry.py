"""What may be asked of parameter servers, and where they say they are."""

import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from windlass.spec.job import Job
from windlass.spec.protocol.server_registry import address_file, read_server_address, register_server

SERVER = {"policy": "server"}


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"sync": SERVER, "layout": {"tp": 2}}, "goes with dp alone"),
        ({"sync": SERVER, "layout": {"dp": 2, "shares": [1, 2]}}, "shares"),
        ({"sync": SERVER, "elastic": {"deterministic": True}}, "deterministic by itself"),
        ({"sync": {**SERVER, "compress": "bfloat16"}}, "sends whole values"),
        ({"sync": {**SERVER, "mode": "bounded"}, "checkpoint": {"verify_every": 2}}, "verify_every"),
        ({"sync": {"mode": "asynchronous"}}, "belong to policy = 'server'"),
        ({"sync": {"servers": 2}}, "belong to policy = 'server'"),
        ({"sync": {**SERVER, "fragments": 2}}, "diloco"),
    ],
)
def test_what_does_not_go_with_servers_is_refused(tables: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Job.model_validate(tables)


def test_a_member_actor_obeys_its_owner_alone_and_a_successor_has_another_key(tmp_path: Path) -> None:
    first = register_server(tmp_path, 1, "127.0.0.1", 20001)
    assert stat.S_IMODE(address_file(tmp_path, 1).stat().st_mode) == 0o600
    assert read_server_address(tmp_path, 1) == first
    second = register_server(tmp_path, 1, "127.0.0.1", 20002)
    assert read_server_address(tmp_path, 1) == second
    assert first.key != second.key
    assert read_server_address(tmp_path, 2) is None
