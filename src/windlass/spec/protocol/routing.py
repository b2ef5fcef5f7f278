"""Messages between the supervisor and its gateways.

The supervisor listens on a Unix socket. Every gateway connects, sends GatewayHello and gets the routing
table, at once and after every change. A gateway reports how requests ended, which replicas do not answer, and
the load. Frames are those of spec/protocol/wire.py. The format is docs/formats/routing.md.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.spec.protocol.wire import Message

State = Literal["ready", "unhealthy", "draining"]
"""ready: takes requests; unhealthy: only if no ready replica is left; draining: finishes what it has."""


class RoutedModel(msgspec.Struct, frozen=True):
    """One version of a model, and the folder with its tokenizer and chat template."""

    id: str
    """NAME@VERSION, or the bare name of a directory that was never registered."""
    folder: str
    names: list[str] = []
    """Further exact names, such as NAME@prod; the bare name is a route."""
    adapters: list[str] = []


class RoutedReplica(msgspec.Struct, frozen=True):
    """One engine process."""

    name: str
    socket: str
    models: list[str]
    """Ids of the models that it serves."""
    state: State = "ready"


class Route(msgspec.Struct, frozen=True):
    """Which versions answer requests for a bare model name."""

    weights: dict[str, float]
    """Parts of the requests, by version; they need not add up to 1."""
    shadow: dict[str, float] = {}
    """Shares, from 0 to 1, of requests that are copied to a version whose answers are discarded."""
    standby: list[str] = []
    """Versions that answer, in this order, while no weighted version has a working replica."""


class Routing(Message, frozen=True, tag="routing"):
    """The routing table; a later revision replaces an earlier one completely."""

    revision: int
    models: list[RoutedModel] = msgspec.field(default_factory=list)
    replicas: list[RoutedReplica] = msgspec.field(default_factory=list)
    routes: dict[str, Route] = msgspec.field(default_factory=dict)
    brownout: int = 0
    """The brown-out level in force (docs/service.md); 0 is full service."""


class GatewayHello(Message, frozen=True, tag="hello"):
    """A gateway's first message."""

    gateway: str
    process: int


class AnswerOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How one answer ended. Invalid requests are not reported."""

    version: str
    replica: str
    code: str = ""
    """Empty if all went well, else a code of docs/formats/wire.md, or `lost` for a replica that ended."""
    first_token_s: float = 0.0
    per_token_s: float = 0.0
    """Mean time from one token to the next; 0 for answers of one token."""
    tokens: int = 0
    repetition: float = 0.0
    """The share of the answer's token pairs that occurred before in the answer."""
    finish: str = ""
    shadow: bool = False


class Outcomes(Message, frozen=True, tag="outcomes"):
    """Answers that ended since the last message of this kind."""

    outcomes: list[AnswerOutcome]


class Suspect(Message, frozen=True, tag="suspect"):
    """A replica that does not answer; the gateway has moved its requests to others."""

    replica: str
    why: str


class VersionDemand(msgspec.Struct, frozen=True):
    """Requests in progress at one version."""

    in_flight: int = 0
    waiting: int = 0
    """Of these, how many have no token yet."""
    refused: int = 0
    """Since the last message."""


class Demand(Message, frozen=True, tag="demand"):
    """The load at this gateway; sent about twice a second."""

    versions: dict[str, VersionDemand]
    refused: int = 0
    """Requests refused before a version was chosen, since the last message."""
    alive: list[str] = msgspec.field(default_factory=list)
    """Versions that this gateway can reach now."""
    revision: int = 0
    """Of the routing table that the gateway uses."""


ToGateway = Routing
ToSupervisor = GatewayHello | Outcomes | Suspect | Demand

to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
to_supervisor: msgspec.msgpack.Decoder[ToSupervisor] = msgspec.msgpack.Decoder(ToSupervisor)
