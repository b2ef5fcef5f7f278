"""The files of the page: which are served, their security policy, compression and caching."""

from __future__ import annotations

import re
from typing import Any

import httpx

from windlass.http.static_files import FILES, FOLDER


def test_the_page_and_its_files_are_served_with_a_strict_policy(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for name in FILES:
        file = http.get(f"/page/{name}")
        assert file.status_code == 200
        assert file.headers["content-type"] == FILES[name]
        again = http.get(f"/page/{name}", headers={"if-none-match": file.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_page_loads_nothing_from_elsewhere_and_has_no_script_or_style_inside() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text("utf-8")
        elsewhere = re.findall(r"""(?:src|href|url\(|from|import\()\s*=?\s*["'](?:https?:)?//[^"']*""", text)
        assert elsewhere == [], name
        assert "innerHTML" not in text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text), name


def test_files_are_packed_for_those_who_can_unpack_and_whole_for_the_others(http: httpx.Client) -> None:
    for path in ("/", "/page/shell.js", "/openapi.json", "/errors"):
        packed = http.get(path, headers={"accept-encoding": "br, gzip;q=0.5"})
        whole = http.get(path, headers={"accept-encoding": "gzip;q=0, identity"})
        assert (packed.headers["content-encoding"], "content-encoding" in whole.headers) == ("gzip", False)
        assert packed.content == whole.content
        assert int(packed.headers["content-length"]) < int(whole.headers["content-length"])
        assert "Accept-Encoding" in packed.headers["vary"]


def test_the_page_says_whether_keys_are_required(http: httpx.Client, guarded: Any) -> None:
    assert 'name="windlass-keys" content="off"' in http.get("/").text
    assert 'name="windlass-keys" content="on"' in httpx.get(guarded.url, timeout=60).text


def test_a_key_learns_what_it_may_do(http: httpx.Client, guarded: Any, given_keys: Any) -> None:
    everybody = http.get("/v1/key").json()
    assert everybody == {"object": "key", "id": "", "tenant": "", "scopes": ["admin", "metrics", "use"]}
    own = httpx.get(f"{guarded.url}/v1/key", headers=given_keys.bearer("user"), timeout=60).json()
    assert own["scopes"] == ["use"]
    assert own["id"]
    assert httpx.get(f"{guarded.url}/v1/key", timeout=60).status_code == 401
