"""docs/formats/routing.md says what windlass.spec.protocol.routing is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from windlass.spec.protocol.routing import (
    AnswerOutcome,
    Route,
    RoutedModel,
    RoutedReplica,
    Routing,
    State,
    ToSupervisor,
    VersionDemand,
    to_gateway,
    to_supervisor,
)
from windlass.spec.protocol.wire import LENGTH, frame

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "routing.md").read_text()
MESSAGES = [Routing, *get_args(ToSupervisor)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
def test_every_message_and_each_of_its_fields_is_described(message: type[msgspec.Struct]) -> None:
    (description,) = re.findall(
        rf"^\*\*{message.__struct_config__.tag}\*\*:(.*?)(?=^\*\*|^## |\Z)", PAGE, re.M | re.S
    )
    named = set(re.findall(r"`(\w+)`", description))
    assert [name for name in message.__struct_fields__ if name not in named] == []


@pytest.mark.parametrize("part", [RoutedModel, RoutedReplica, Route, VersionDemand])
def test_every_field_of_a_part_is_described(part: type[msgspec.Struct]) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert [name for name in part.__struct_fields__ if name not in named] == []


def test_outcomes_are_arrays_in_the_order_described() -> None:
    (shown,) = re.findall(r"^    \[(.*)\]$", PAGE, re.M)
    assert tuple(shown.split(", ")) == AnswerOutcome.__struct_fields__


def test_every_state_is_described() -> None:
    assert [state for state in get_args(State) if f"`{state}`" not in PAGE] == []


def test_a_table_comes_back_as_it_was_sent() -> None:
    routing = Routing(
        3,
        [RoutedModel("a@1", "/m", ["a@prod"])],
        [RoutedReplica("engine-1", "/s", ["a@1"], "draining")],
        {"a": Route({"a@1": 1.0}, {"a@2": 0.5}, ["a@0"])},
        2,
    )
    assert to_gateway.decode(frame(routing)[LENGTH.size :]) == routing
    with pytest.raises(msgspec.MsgspecError):
        to_supervisor.decode(frame(routing)[LENGTH.size :])
