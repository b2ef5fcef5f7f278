"""Several sites under one DNS name: their addresses, their distances from clients, and their health checks.

Input: a TOML file (docs/formats/sites.md). Output: a Sites.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from windlass.spec.config_model import Bytes, ConfigModel, Name, Seconds
from windlass.spec.read import parse, read_toml
from windlass.spec.rollout import Rollout

Host = Annotated[
    str, Field(pattern=r"^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?)+$", max_length=253)
]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Site(ConfigModel):
    """One place where the service runs."""

    name: Name = Field(description="also a name below the zone: east.llm.example.org")
    addresses: tuple[str, ...] = Field(description="what clients connect to, IPv4 and IPv6")
    url: str = Field(description="URL of its gateway, for health checks, e.g. 'http://10.1.0.1:8000'")
    distance: Annotated[float, Field(ge=0)] = Field(
        100.0, description="from clients outside of all [[clients]] networks; the lowest is nearest"
    )

    key_variable: str | None = Field(
        None, description="environment variable with a key of this site; WINDLASS_KEY if left out"
    )

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        if not addresses:
            raise ValueError("a site needs at least one address")
        for address in addresses:
            ipaddress.ip_address(address)
        return addresses


class Clients(ConfigModel):
    """Networks, and how far their clients are from the sites; sites left out keep their own distance."""

    networks: tuple[str, ...] = Field(description="e.g. ['10.1.0.0/16', '2001:db8::/32']")
    distances: dict[str, Annotated[float, Field(ge=0)]] = Field(description="by the name of the site")

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ipaddress.ip_network(network)) for network in networks)


class SiteCheck(ConfigModel):
    """When a site counts as healthy."""

    every: Seconds = Field(1.0, description="time between two checks of a site")
    within: Seconds = Field(2.0, description="an answer that takes longer counts as none")
    fall: Annotated[int, Field(ge=1)] = Field(2, description="bad answers in a row until it is left out")
    rise: Annotated[int, Field(ge=1)] = Field(5, description="good answers in a row until it is back")
    model: str | None = Field(
        None, description="probe this model with a known prompt; without it, /readyz only"
    )
    prompt: str = Field("The quick brown fox", description="the question")
    tokens: Annotated[int, Field(ge=1, le=64)] = Field(8, description="of the answer")
    expect: str | None = Field(
        None, description="the expected answer; left out, the first answer of the version at any site"
    )


class Replicate(ConfigModel):
    """Which models are replicated to every site, and through which store."""

    depot: str = Field(
        description="store that the home and every site reach, e.g. 's3://bucket/models', or a shared folder"
    )
    models: tuple[Name, ...] = Field((), description="names of models; left out, all that have an alias")
    keep: Annotated[int, Field(ge=1)] | None = Field(
        None, description="newest versions of a model that stay, besides those with an alias; left out, all"
    )
    every: Seconds = Field(5.0, description="time between two checks for new versions")
    rate: Bytes | None = Field(None, description="maximum bytes a second, at the home and at each site")
    parallel: Annotated[int, Field(ge=1, le=64)] = Field(4, description="chunks in transfer at once")


class SitesRollout(ConfigModel):
    """How a version goes from site to site."""

    order: tuple[Name, ...] = Field((), description="sites, the canary first; left out, as they are listed")
    at_once: Annotated[int, Field(ge=1)] = Field(
        1, description="maximum number of sites at a time, once the first is done"
    )
    drain: bool = Field(False, description="send a site no clients while it changes")
    kind: Literal["canary", "blue_green"] = Field("canary", description="of each site's own roll-out")
    policy: Rollout = Field(Rollout(), description="of each site's own roll-out, as [serve.rollout]")
    settle: Seconds = Field(60.0, description="a site must pass its probes for so long before the next site")
    wait: Seconds = Field(
        3600.0,
        description="timeout for a site that lacks its copy or cannot be reached; then the roll-out stops",
    )
    on_failure: Literal["stop", "back"] = Field(
        "stop", description="stop: the site that failed is rolled back; back: those before it, too"
    )


class Sites(ConfigModel):
    """A zone and its sites."""

    zone: Host = Field(description="the name that clients use; we answer for it and what is below")
    nameservers: tuple[Host, ...] = Field(
        (), description="names of the servers that answer for the zone; ns.ZONE if left out"
    )
    contact: Host | None = Field(None, description="mailbox of the SOA record; hostmaster.ZONE if left out")
    ttl: Annotated[int, Field(ge=1, le=86400)] = Field(5, description="seconds that an answer may be kept")
    drain: Seconds = Field(30.0, description="how long a site that is taken out keeps answering")
    watch: SiteCheck = Field(SiteCheck(), description="when a site counts as healthy")
    site: tuple[Site, ...] = Field(description="the sites")
    clients: tuple[Clients, ...] = Field((), description="distances of client networks from sites")
    replicate: Replicate | None = Field(None, description="which models are replicated to every site")
    rollout: SitesRollout = Field(SitesRollout(), description="how a version goes from site to site")

    @model_validator(mode="after")
    def _consistent(self) -> Sites:
        names = [site.name for site in self.site]
        if not names:
            raise ValueError("give at least one [[site]]")
        if len(set(names)) < len(names):
            raise ValueError("two sites have the same name")
        unknown = [name for row in self.clients for name in row.distances if name not in names]
        if unknown:
            raise ValueError(f"distances name an unknown site '{unknown[0]}'")
        order = self.rollout.order
        if order and sorted(order) != sorted(names):
            raise ValueError(f"the order of [rollout] must name every site once: {', '.join(names)}")
        return self

    @property
    def order(self) -> tuple[str, ...]:
        """The sites as a roll-out visits them."""
        return self.rollout.order or tuple(site.name for site in self.site)


def read_sites(path: Path) -> Sites:
    return parse(Sites, read_toml(path), str(path))
