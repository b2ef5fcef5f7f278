"""What the supervisor and its gateways say to each other.

The supervisor listens on a Unix socket; every gateway connects, says hello and is told where to send
requests, at once and whenever that changes. It tells how requests ended, which replicas it doubts and
how much is asked for. Frames are those of spec/protocol/wire.py. The format is docs/formats/steer.md.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.spec.protocol.wire import Message

State = Literal["ready", "unwell", "draining"]
"""Takes requests; takes them only where no ready one is left; takes none and finishes what it has."""


class RoutedModel(msgspec.Struct, frozen=True):
    """One version of a model: what the gateway must read to speak its language."""

    id: str
    """NAME@VERSION, or the bare name of a directory that was never registered."""
    folder: str
    names: list[str] = []
    """All exact names, such as NAME@prod; the bare name is a route."""
    adapters: list[str] = []


class RoutedReplica(msgspec.Struct, frozen=True):
    """One engine process."""

    name: str
    socket: str
    models: list[str]
    """Ids of the models that it serves."""
    state: State = "ready"


class Route(msgspec.Struct, frozen=True):
    """What a bare name means."""

    weights: dict[str, float]
    """Parts of the requests, by version; they need not add up to 1."""
    shadow: dict[str, float] = {}
    """Shares, from 0 to 1, of requests that are copied to a version whose answers nobody sees."""
    standby: list[str] = []
    """Versions that answer, in this order, while none of the weighted has a replica that works."""


class Routing(Message, frozen=True, tag="routing"):
    """Where requests go; a later revision replaces an earlier one altogether."""

    revision: int
    models: list[RoutedModel] = msgspec.field(default_factory=list)
    replicas: list[RoutedReplica] = msgspec.field(default_factory=list)
    routes: dict[str, Route] = msgspec.field(default_factory=dict)
    brownout: int = 0
    """The step of the ladder of docs/service.md that is in force; 0 is full service."""


class GatewayHello(Message, frozen=True, tag="hello"):
    """A gateway's first word."""

    gateway: str
    process: int


class AnswerOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How one answer ended. A client's own mistakes are no outcomes."""

    version: str
    replica: str
    code: str = ""
    """Empty if all went well, else a code of docs/formats/wire.md, or `lost` for a replica that ended."""
    first_token_s: float = 0.0
    per_token_s: float = 0.0
    """Mean time from one token to the next; 0 for answers of one token."""
    tokens: int = 0
    repetition: float = 0.0
    """The part of the answer's token pairs that the answer had before."""
    finish: str = ""
    shadow: bool = False


class Outcomes(Message, frozen=True, tag="outcomes"):
    """What has ended since the last message of this kind."""

    outcomes: list[AnswerOutcome]


class Suspect(Message, frozen=True, tag="suspect"):
    """A replica that was asked and does not answer; requests have been moved away from it."""

    replica: str
    why: str


class VersionDemand(msgspec.Struct, frozen=True):
    """What is under way at one version."""

    in_flight: int = 0
    waiting: int = 0
    """Of these, how many have no token yet."""
    refused: int = 0
    """Since the last message."""


class Demand(Message, frozen=True, tag="demand"):
    """How much is asked for; sent about twice a second."""

    versions: dict[str, VersionDemand]
    refused: int = 0
    """Requests that no version was chosen for, since the last message."""
    alive: list[str] = msgspec.field(default_factory=list)
    """Versions that this gateway could ask right now."""
    revision: int = 0
    """Of the routing table by which it asks."""


ToGateway = Routing
ToSupervisor = GatewayHello | Outcomes | Suspect | Demand

to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
to_supervisor: msgspec.msgpack.Decoder[ToSupervisor] = msgspec.msgpack.Decoder(ToSupervisor)
