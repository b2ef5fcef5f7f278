"""Writes a whole call: its body as JSON, and the call for curl, Python, JavaScript and Java.

The key is always $WINDLASS_KEY of the environment, so that no key ends up in a history or a repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.completion.tree import written

KEY = "WINDLASS_KEY"
WAIT_S = 600


@dataclass(frozen=True)
class FullCall:
    """A call in which nothing is missing."""

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    needs_key: bool = True

    @property
    def streams(self) -> bool:
        return isinstance(self.body, dict) and self.body.get("stream") is True

    @property
    def json(self) -> str:
        return "" if self.body is None else json.dumps(self.body, ensure_ascii=False, indent=2)


def write_all(call: FullCall) -> dict[str, str]:
    """Return the call in every language."""
    return {
        "curl": write_curl(call),
        "python": write_python(call),
        "javascript": write_javascript(call),
        "java": write_java(call),
        "json": call.json,
    }


def write_curl(call: FullCall) -> str:
    parts = ["curl -N" if call.streams else "curl"]
    parts[0] += "" if call.method == ("GET" if call.body is None else "POST") else f" -X {call.method}"
    parts[0] += f" {_quoted(call.url)}"
    if call.needs_key:
        parts.append(f'-H "authorization: Bearer ${KEY}"')
    if call.body is not None:
        parts.append("-H 'content-type: application/json'")
    parts += [f"-H {_quoted(f'{name}: {value}')}" for name, value in call.headers.items()]
    if call.body is not None:
        parts.append(f"-d {_quoted(json.dumps(call.body, ensure_ascii=False))}")
    return " \\\n  ".join(parts)


def write_python(call: FullCall) -> str:
    arguments = f'"{call.method}", {written(call.url)}, '
    arguments += f"headers={{{', '.join(_python_headers(call))}}}, " if _python_headers(call) else ""
    arguments += "json=body, " if call.body is not None else ""
    arguments += f"timeout={WAIT_S}"
    lines = ["import os", ""] if call.needs_key else []
    lines += ["import httpx", ""]
    lines += [f"body = {_python_body(call.body)}"] if call.body is not None else []
    if call.streams:
        lines += [
            f"with httpx.stream({arguments}) as reply:",
            "    for line in reply.iter_lines():",
            '        if line.startswith("data: "):',
            "            print(line[6:])",
        ]
    else:
        lines += [f"reply = httpx.request({arguments})", "print(reply.text)"]
    return "\n".join(lines)


def write_javascript(call: FullCall) -> str:
    headers = [f'"authorization": `Bearer ${{process.env.{KEY}}}`'] if call.needs_key else []
    headers += ['"content-type": "application/json"'] if call.body is not None else []
    headers += [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in call.headers.items()]
    options = [f'method: "{call.method}"']
    options += [f"headers: {{ {', '.join(headers)} }}"] if headers else []
    options += [f"body: JSON.stringify({_indented(call.json, 2)})"] if call.body is not None else []
    inner = ",\n  ".join(options)
    lines = [f"const reply = await fetch({json.dumps(call.url)}, {{\n  {inner},\n}});"]
    if call.streams:
        lines.append(
            "for await (const piece of reply.body.pipeThrough(new TextDecoderStream())) console.log(piece);"
        )
    else:
        lines.append("console.log(await reply.text());")
    return "\n".join(lines)


def write_java(call: FullCall) -> str:
    made = [f"HttpRequest.newBuilder(URI.create({json.dumps(call.url)}))"]
    made += [f'.header("authorization", "Bearer " + System.getenv("{KEY}"))'] if call.needs_key else []
    made += ['.header("content-type", "application/json")'] if call.body is not None else []
    made += [f".header({json.dumps(name)}, {json.dumps(value)})" for name, value in call.headers.items()]
    publisher = "ofString(body)" if call.body is not None else "noBody()"
    made.append(f'.method("{call.method}", HttpRequest.BodyPublishers.{publisher})')
    handler = "ofLines()" if call.streams else "ofString()"
    shown = (
        "reply.body().forEach(System.out::println);" if call.streams else "System.out.println(reply.body());"
    )
    lines = [
        "import java.net.URI;",
        "import java.net.http.*;",
        "",
        "public class Call {",
        "    public static void main(String[] args) throws Exception {",
        *([f"        String body = {_java_text(call.json)};"] if call.body is not None else []),
        "        var request = " + "\n            ".join(made) + ".build();",
        f"        var reply = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.{handler});",
        f"        {shown}",
        "    }",
        "}",
    ]
    return "\n".join(lines)


def _python_headers(call: FullCall) -> list[str]:
    own = [f'"authorization": f"Bearer {{os.environ[\'{KEY}\']}}"'] if call.needs_key else []
    return own + [f"{written(name)}: {written(value)}" for name, value in call.headers.items()]


def _python_body(body: Any) -> str:
    if not isinstance(body, dict) or not body:
        return written(body, python=True)
    lines = [f"    {written(key)}: {written(value, python=True)}," for key, value in body.items()]
    return "\n".join(["{", *lines, "}"])


def _java_text(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace('"""', '\\"""')
    return '"""\n' + "\n".join(f"            {line}" for line in inner.splitlines()) + '\n            """'


def _indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


def _quoted(text: str) -> str:
    """Quote a word for a shell, where it needs it."""
    safe = all(sign.isalnum() or sign in "-._~:/@%+," for sign in text)
    return text if safe and text else "'" + text.replace("'", "'\\''") + "'"
