"""/errors and /errors/CODE: what happened, an example, and what to do, from the tables of error codes.

Browsers get a page that loads nothing from other sites; clients that accept application/json get the same
data. The language is that of ?lang=, otherwise of Accept-Language.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from html import escape
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import CODES, ERRORS_PATH, Code
from windlass.http.static_files import FILES, Page, send

Language = Literal["en", "zh"]

VARY = "Accept, Accept-Encoding, Accept-Language"
LANGUAGE = {
    "name": "lang",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "en or zh; otherwise Accept-Language decides.",
}
TAGS: dict[Language, str] = {"en": "en", "zh": "zh-CN"}
SHAPE = """{"error": {
  "code": "invalid_value",            one of this list; programs branch on it
  "type": "invalid_request_error",    the family that OpenAI's clients know
  "message": "...",                   for people
  "param": "messages[0].content",     the place in the body, or null
  "path": "$.messages[0].content",    the same place as a JSON path, or null
  "allowed": {"maximum": 2},          what may stand there, in keywords of JSON Schema, or null
  "corrected": {...},                 a whole body that would be accepted, where that is sure, or null
  "doc_url": "/errors/invalid_value",
  "request_id": "..."                 also in the header X-Request-Id
}}"""
WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "errors": "Errors",
        "intro": "Every failure has the same shape; in a stream it is the last event.",
        "back": "Back to the page",
        "code": "code",
        "status": "status",
        "type": "type",
        "meaning": "meaning",
        "all": "All errors",
        "happened": "What happened",
        "do": "What to do",
        "example": "Example",
        "refused": "Refused",
        "accepted": "Accepted",
        "other": "中文",
    },
    "zh": {
        "errors": "错误",
        "intro": "所有失败都是同一种形式；在流中它是最后一个事件。",
        "back": "返回页面",
        "code": "代码",
        "status": "状态",
        "type": "类型",
        "meaning": "含义",
        "all": "所有错误",
        "happened": "发生了什么",
        "do": "怎么办",
        "example": "示例",
        "refused": "被拒绝",
        "accepted": "被接受",
        "other": "English",
    },
}


class CodeReply(BaseModel):
    """One error code; `route`, `wrong` and `right` are an example, empty if there is none."""

    code: str
    status: int
    type: str
    meaning: str
    remedy: str
    route: str
    wrong: str
    right: str


class CodeList(BaseModel):
    """Every code, in one language."""

    object: Literal["list"]
    language: Language
    data: list[CodeReply]


def errors_response(request: Request) -> Response:
    """Return the page that lists every code."""
    language = language_of(request)
    return send(request, _facts(language, None) if _wants_facts(request) else _list(language))


def error_response(request: Request, code: str) -> Response | None:
    """Return the page of one code, or None when there is no such code."""
    if code not in CODES:
        return None
    language = language_of(request)
    return send(request, _facts(language, code) if _wants_facts(request) else _page(language, code))


def language_of(request: Request) -> Language:
    """Return the requested language, or English."""
    wanted = request.query_params.get("lang", "") or _preferred(request.headers.get("accept-language", ""))
    return "zh" if wanted.lower().startswith("zh") else "en"


def _preferred(accepted: str) -> str:
    """Return the supported tag with the highest quality; the first of equals."""
    best, best_quality = "", 0.0
    for entry in accepted.split(","):
        tag, _, quality = entry.strip().partition(";q=")
        preference = float(quality) if quality.replace(".", "", 1).isdecimal() else 1.0
        if tag[:2].lower() in ("en", "zh") and preference > best_quality:
            best, best_quality = tag, preference
    return best


def _wants_facts(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


@cache
def texts(language: Language) -> dict[str, Code]:
    """Return the table of codes in a language."""
    if language == "en":
        return CODES
    translated = tomllib.loads((files("windlass.http") / f"codes.{language}.toml").read_text("utf-8"))
    return {code: Code(**(vars(entry) | translated.get(code, {}))) for code, entry in CODES.items()}


@cache
def _facts(language: Language, code: str | None) -> Page:
    replies = [CodeReply(code=name, **vars(entry)) for name, entry in texts(language).items()]
    chosen = [reply for reply in replies if code in (None, reply.code)]
    body = CodeList(object="list", language=language, data=chosen).model_dump_json()
    return Page(body.encode(), "application/json", VARY)


@cache
def _list(language: Language) -> Page:
    words = WORDS[language]
    rows = "".join(
        f'<tr id="{code}"><td><a href="{ERRORS_PATH}/{code}"><code>{code}</code></a></td>'
        f"<td>{entry.status}</td><td>{escape(entry.type)}</td><td>{escape(entry.meaning)}</td></tr>\n"
        for code, entry in texts(language).items()
    )
    heads = "".join(f"<th>{words[name]}</th>" for name in ("code", "status", "type", "meaning"))
    return _whole(
        language,
        words["errors"],
        f"""<p>{words["intro"]} <a href="/">{words["back"]}</a></p>
<pre>{escape(SHAPE)}</pre>
<table class="list">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}</tbody>
</table>""",
    )


@cache
def _page(language: Language, code: str) -> Page:
    words, entry = WORDS[language], texts(language)[code]
    return _whole(
        language,
        code,
        f"""<p>{words["status"]} {entry.status}, {words["type"]} <code>{escape(entry.type)}</code>.
<a href="{ERRORS_PATH}">{words["all"]}</a> · <a href="/#/errors/{code}">{words["back"]}</a></p>
<h2>{words["happened"]}</h2>
<p>{prose(entry.meaning)}</p>
<h2>{words["do"]}</h2>
<p>{prose(entry.remedy)}</p>
{_example(language, entry)}""",
    )


def prose(text: str) -> str:
    """Return text as HTML; words between backticks become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _example(language: Language, entry: Code) -> str:
    if not entry.wrong:
        return ""
    words = WORDS[language]
    return f"""<h2>{words["example"]}</h2>
<p>{words["refused"]}: POST {escape(entry.route)}</p>
<pre>{escape(entry.wrong)}</pre>
<p>{words["accepted"]}:</p>
<pre>{escape(entry.right)}</pre>"""


def _whole(language: Language, title: str, content: str) -> Page:
    other: Language = "zh" if language == "en" else "en"
    body = f"""<!doctype html>
<html lang="{TAGS[language]}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Windlass: {escape(title)}</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/style.css">
<script src="/page/early.js" data-keeps-language></script>
<body class="reading">
<main>
<p class="hint"><a href="?lang={other}" lang="{TAGS[other]}">{WORDS[language]["other"]}</a></p>
<h1>{escape(title)}</h1>
{content}
</main>
</body>
</html>
"""
    return Page(body.encode(), FILES["index.html"], VARY)
