"""Turns files into documents.

Input: the files of a corpus, at any URL, plain or compressed (.gz, .zst). Output: documents in a fixed
order. A file that is no text is skipped and counted; a file that is broken (a line that is not JSON, a
truncated archive) stops the build, because silently losing part of it would be worse.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.corpus.sources import SourceFile
from windlass.corpus.streams import ReadProgress, plain_bytes
from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.job import Corpus
from windlass.store.store_dir import opened

SNIFF_BYTES = 8192
BATCH_ROWS = 4096

Numbered = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class Document:
    """One text. `source` counts files from 0; `number` is its line, row or place in the file, from 1."""

    source: int
    number: int
    text: str


def documents(files: Sequence[SourceFile], corpus: Corpus, tally: ReadProgress) -> Iterator[Document]:
    """Yield every document of every file."""
    for source, file in enumerate(files):
        for number, text in _read(file, corpus, tally):
            yield Document(source, number, text)
        tally.finish(file)


def _read(file: SourceFile, corpus: Corpus, tally: ReadProgress) -> Numbered:
    if file.kind == "topics":
        return _topics()
    if file.kind == "parquet":
        return _parquet(file, corpus.text_field, tally)
    if file.kind == "jsonl":
        return _jsonl(file, corpus.text_field, tally)
    whole = corpus.document == "file" or corpus.format == "code" or file.name.startswith("python:")
    if whole:
        return _whole_file(file, tally)
    return _paragraphs(file, tally) if corpus.document == "paragraph" else _lines(file, tally)


def _topics() -> Numbered:
    from pydoc_data.topics import topics

    for number, (_, text) in enumerate(sorted(topics.items()), start=1):
        yield number, text


def _whole_file(file: SourceFile, tally: ReadProgress) -> Numbered:
    with plain_bytes(file, tally) as stream:
        if not _is_text(stream, tally):
            return
        data = stream.read()
    try:
        yield 1, data.decode("utf-8-sig")
    except UnicodeDecodeError:
        tally.skipped["file that is not UTF-8"] += 1


def _lines(file: SourceFile, tally: ReadProgress) -> Numbered:
    with plain_bytes(file, tally) as stream:
        if not _is_text(stream, tally):
            return
        for number, line in enumerate(stream, start=1):
            text = _decoded(line, file, number).rstrip("\r\n")
            if text.strip():
                yield number, text


def _paragraphs(file: SourceFile, tally: ReadProgress) -> Numbered:
    """Yield what blank lines separate; the number is that of the first line."""
    with plain_bytes(file, tally) as stream:
        if not _is_text(stream, tally):
            return
        first, lines = 1, list[str]()
        for number, line in enumerate(stream, start=1):
            text = _decoded(line, file, number)
            if text.strip():
                first = first if lines else number
                lines.append(text)
            elif lines:
                yield first, "".join(lines).rstrip("\r\n")
                lines = []
        if lines:
            yield first, "".join(lines).rstrip("\r\n")


def _jsonl(file: SourceFile, field_name: str, tally: ReadProgress) -> Numbered:
    import msgspec

    decode = msgspec.json.Decoder().decode
    with plain_bytes(file, tally) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = decode(line if number > 1 else line.removeprefix(b"\xef\xbb\xbf"))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadInput(
                    f"{file.name}: line {number} is not JSON: {error}",
                    hint="JSONL holds one JSON object on each line",
                ) from None
            text = _field(row, field_name, f"{file.name}: line {number}")
            if text is None:
                tally.skipped["row without text"] += 1
            else:
                yield number, text


def _field(row: Any, name: str, where: str) -> str | None:
    if not isinstance(row, dict):
        raise BadInput(f"{where} holds {_json_kind(row)}, not an object", hint='write {"text": "..."}')
    if name not in row:
        raise BadInput(f"{where} has no field '{name}'", hint=_field_hint(name, list(row)))
    value = row[name]
    if value is not None and not isinstance(value, str):
        raise BadInput(
            f"{where}: field '{name}' holds {_json_kind(value)}, not a string",
            hint=_field_hint(name, [key for key, v in row.items() if isinstance(v, str)]),
        )
    return value


def _field_hint(name: str, others: list[str]) -> str:
    return f"set text_field to the field that holds the text; {did_you_mean(name, others)}"


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _parquet(file: SourceFile, column: str, tally: ReadProgress) -> Numbered:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    with opened(file.url) as raw:
        try:
            table = parquet.ParquetFile(raw)
            _check_column(table.schema_arrow, column, file.name)
            number = 0
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=[column]):
                tally.position = functools.partial(int, file.bytes * number // table.metadata.num_rows)
                for value in batch.column(0):
                    number += 1
                    text = value.as_py()
                    if text is None:
                        tally.skipped["row without text"] += 1
                    else:
                        yield number, text
        except (arrow.ArrowException, UnicodeDecodeError) as error:
            raise BadInput(f"{file.name}: not readable as Parquet: {error}") from None


def _check_column(schema: Any, column: str, where: str) -> None:
    if column not in schema.names:
        raise BadInput(
            f"{where}: no column '{column}'",
            hint=_field_hint(column, list(schema.names)).replace("field ", "column "),
        )
    kind = str(schema.field(column).type)
    if "string" not in kind:
        raise BadInput(
            f"{where}: column '{column}' holds {kind}, not strings",
            hint="set text_field to a column of strings",
        )


def _decoded(line: bytes, file: SourceFile, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise BadInput(
            f"{file.name}: line {number} is not UTF-8", hint="convert it, e.g. iconv -f GB18030 -t UTF-8"
        ) from None


def _is_text(stream: io.BufferedReader, tally: ReadProgress) -> bool:
    """Look at the first bytes; a NUL byte is found in nearly every binary file and in no text."""
    start = stream.peek(SNIFF_BYTES)[:SNIFF_BYTES]
    if not start:
        tally.skipped["empty file"] += 1
    elif b"\0" in start:
        tally.skipped["binary file"] += 1
    return bool(start) and b"\0" not in start
