"""The results of a sweep: a text for the terminal, and a page that opens offline.

Input: the rows of each output, as they are in the Parquet files. Output: text, HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from windlass.spec.units import format_bytes, format_count, format_seconds

Rows = dict[str, list[dict[str, Any]]]

HEAD = (
    "fleet",
    "model",
    "context",
    "arithmetic",
    "bucket",
    "batch",
    "layout",
    "memory",
    "step",
    "time",
    "cost",
)
UNSOLVED = ("fleet", "model", "context", "arithmetic", "bucket", "why there is no solution")
STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .75rem; text-align: left }
tr:nth-child(even) { background: #8881 } th { border-bottom: 2px solid #8886 }
.bar { background: #47a; height: .8rem; display: inline-block; vertical-align: middle }
"""


def as_text(rows: Rows) -> str:
    """Return what the terminal shows."""
    parts = [_lengths(rows)]
    if rows["result"]:
        parts += ["", *_aligned(HEAD, map(_solved, rows["result"]))]
    if rows["no_solution"]:
        parts += ["", *_aligned(UNSOLVED, map(_unsolved, rows["no_solution"]))]
    return "\n".join(parts) + "\n"


def as_html(rows: Rows, name: str) -> str:
    """Return one page without anything to load from elsewhere."""
    highest = max((row["tokens"] for row in rows["buckets"]), default=1)
    lengths = (
        (
            f"up to {row['bucket']}",
            format_count(row["documents"]),
            format_count(row["tokens"]),
            row["tokens"] / highest,
        )
        for row in rows["buckets"]
    )
    bars = "".join(
        f"<tr><td>{length}<td>{documents}<td>{tokens}<td>{_bar(share)}"
        for length, documents, tokens, share in lengths
    )
    title = f"Sweep of {_safe(name)}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><h2>Lengths of documents, in tokens</h2>"
        f"<table><tr><th>length<th>documents<th>tokens<th>{bars}</table>"
        + _table("Plans", HEAD, map(_solved, rows["result"]))
        + _table("No solution", UNSOLVED, map(_unsolved, rows["no_solution"]))
        + "</html>\n"
    )


def _lengths(rows: Rows) -> str:
    documents = sum(row["documents"] for row in rows["buckets"])
    tokens = sum(row["tokens"] for row in rows["buckets"])
    return (
        f"{format_count(documents)} documents, {format_count(tokens)} tokens, {len(rows['buckets'])} lengths;"
        f" {len(rows['result'])} plans, {len(rows['no_solution'])} without solution"
    )


def _solved(row: dict[str, Any]) -> tuple[str, ...]:
    low, high = row["dollars_low"], row["dollars_high"]
    return (
        *_option(row),
        f"{row['batch']} x {row['sequence']}",
        _layout(row),
        format_bytes(row["memory_bytes"]),
        f"{row['step_s']:.3g} s",
        format_seconds(row["seconds"]),
        "unknown" if low is None else f"${format_count(round(low, 2))} to {format_count(round(high, 2))}",
    )


def _unsolved(row: dict[str, Any]) -> tuple[str, ...]:
    return (*_option(row), row["reason"])


def _option(row: dict[str, Any]) -> tuple[str, ...]:
    model = format_count(row["parameters"])
    return row["fleet"], model, str(row["context"]), row["precision"], f"up to {row['bucket']}"


def _layout(row: dict[str, Any]) -> str:
    axes = [f"{axis}={row[axis]}" for axis in ("dp", "tp", "pp", "virtual", "cp", "ep") if row[axis] > 1]
    kinds = [f"{kind} {row[kind]}" for kind in ("sharding", "recompute") if row[kind] != "none"]
    return ", ".join([*axes, f"micro-batch {row['micro_batch']}", *kinds])


def _aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{_safe(cell)}" for cell in row) for row in rows)
    heads = "".join(f"<th>{_safe(cell)}" for cell in head)
    return f"<h2>{title}</h2><table><tr>{heads}{body}</table>" if body else ""


def _bar(share: float) -> str:
    return f"<span class=bar style='width:{20 * share:.2f}rem'></span>"


def _safe(text: str) -> str:
    return html.escape(str(text))
