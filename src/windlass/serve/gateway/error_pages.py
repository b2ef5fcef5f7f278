"""/errors and /errors/CODE: what happened, an example, and what to do; made from the table of codes.

The pages are whole in themselves and load nothing from elsewhere.
"""

from __future__ import annotations

from functools import cache
from html import escape

from starlette.requests import Request
from starlette.responses import Response

from windlass.serve.gateway.errors import CODES, ERRORS_PATH, Code
from windlass.serve.gateway.pages import FILES, Page, send

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


def errors_response(request: Request) -> Response:
    """Return the page that lists every code."""
    return send(request, _list())


def error_response(request: Request, code: str) -> Response | None:
    """Return the page of one code, or None when there is no such code."""
    return send(request, _page(code)) if code in CODES else None


@cache
def _list() -> Page:
    rows = "".join(
        f'<tr id="{code}"><td><a href="{ERRORS_PATH}/{code}"><code>{code}</code></a></td>'
        f"<td>{entry.status}</td><td>{escape(entry.type)}</td><td>{escape(entry.meaning)}</td></tr>\n"
        for code, entry in CODES.items()
    )
    return _whole(
        "Errors",
        f"""<p>Every failure has the same shape; in a stream it is the last event.
<a href="/">Back to the page</a></p>
<pre>{escape(SHAPE)}</pre>
<table>
<thead><tr><th>code</th><th>status</th><th>type</th><th>meaning</th></tr></thead>
<tbody>
{rows}</tbody>
</table>""",
    )


@cache
def _page(code: str) -> Page:
    entry = CODES[code]
    return _whole(
        code,
        f"""<p>Status {entry.status}, type <code>{escape(entry.type)}</code>.
<a href="{ERRORS_PATH}">All errors</a></p>
<h2>What happened</h2>
<p>{escape(entry.meaning)}</p>
<h2>What to do</h2>
<p>{escape(entry.remedy)}</p>
{_example(entry)}""",
    )


def _example(entry: Code) -> str:
    if not entry.wrong:
        return ""
    return f"""<h2>Example</h2>
<p>Refused: POST {escape(entry.route)}</p>
<pre>{escape(entry.wrong)}</pre>
<p>Accepted:</p>
<pre>{escape(entry.right)}</pre>"""


def _whole(title: str, content: str) -> Page:
    body = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Windlass: {escape(title)}</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/style.css">
<body class="reading">
<main>
<h1>{escape(title)}</h1>
{content}
</main>
</body>
</html>
"""
    return Page(body.encode(), FILES["index.html"])
