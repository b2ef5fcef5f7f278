"""Asks a site's gateway how it is: a question whose answer is known, within a time.

The same version answers the same question alike at every site, to the letter, because at temperature 0
nothing else decides. So what a version first answered anywhere is what it must answer everywhere; a site
that says otherwise has other weights or a fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping

import httpx

from windlass.sites.dns.site_health import Probe
from windlass.spec.sites import Site, SiteCheck

KEY = "WINDLASS_KEY"
"""The environment variable with the key of sites that name none of their own."""


def key_of(site: Site) -> str | None:
    return os.environ.get(site.key_variable or KEY)


async def ask(
    client: httpx.AsyncClient, site: Site, watch: SiteCheck, key: str | None, known: MutableMapping[str, str]
) -> Probe:
    """Ask one site once; `known` keeps the answer of every version."""
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
        told = reply.json()
        version, text = str(told["model"]), str(told["choices"][0]["text"])
    except (ValueError, KeyError, IndexError, TypeError):
        return "answers with something that is no completion"
    expected = watch.expect if watch.expect is not None else known.setdefault(version, text)
    return None if text == expected else f"{version} answers otherwise than it should"
