"""Probes a site's gateway with a prompt whose answer is known, within a time limit.

At temperature 0 a version gives the same completion at every site, to the letter. So the first answer of a
version at any site is the expected answer at all sites; a site that answers differently has other weights or
a fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping

import httpx

from windlass.sites.dns.site_health import Probe
from windlass.spec.sites import Site, SiteCheck

KEY = "WINDLASS_KEY"
"""Environment variable with the API key of sites without a `key_variable`."""


def key_of(site: Site) -> str | None:
    return os.environ.get(site.key_variable or KEY)


async def ask(
    client: httpx.AsyncClient, site: Site, watch: SiteCheck, key: str | None, known: MutableMapping[str, str]
) -> Probe:
    """Probe one site once; `known` keeps the expected answer of every version."""
    began = time.monotonic()
    try:
        if watch.model is None:
            reply = await client.get(f"{site.url}/readyz", timeout=watch.within)
        else:
            reply = await client.post(
                f"{site.url}/v1/completions",
                json={
                    "model": watch.model,
                    "prompt": watch.prompt,
                    "max_tokens": watch.tokens,
                    "temperature": 0,
                },
                headers={"authorization": f"Bearer {key}"} if key else {},
                timeout=watch.within,
            )
    except (httpx.HTTPError, OSError) as error:
        return Probe(False, time.monotonic() - began, f"no answer: {type(error).__name__}")
    took_s = time.monotonic() - began
    if reply.status_code != httpx.codes.OK:
        return Probe(False, took_s, f"answers with status {reply.status_code}")
    if took_s > watch.within:
        return Probe(False, took_s, f"took {took_s:.2f} s, more than {watch.within:g}")
    wrong = None if watch.model is None else _wrong(reply, watch, known)
    return Probe(wrong is None, took_s, wrong or "")


def _wrong(reply: httpx.Response, watch: SiteCheck, known: MutableMapping[str, str]) -> str | None:
    try:
        body = reply.json()
        version, text = str(body["model"]), str(body["choices"][0]["text"])
    except (ValueError, KeyError, IndexError, TypeError):
        return "the reply is not a completion"
    expected = watch.expect if watch.expect is not None else known.setdefault(version, text)
    return None if text == expected else f"{version} gives an unexpected answer"
