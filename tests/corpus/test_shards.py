from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.corpus.shards import PartRecord, PartWriter, TokenPart, token_type
from windlass.corpus.split import Pieces
from windlass.corpus.tokenise import TokenBlock, write_part
from windlass.spec.errors import BadInput
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.store_dir import StoreDir


def written(folder: Path, documents: list[list[int]], shard_tokens: int, cuts: list[int]) -> PartRecord:
    """Write documents, cut into blocks at arbitrary places as long documents are."""
    flat = np.array([t for d in documents for t in d], dtype=np.uint32)
    ends = np.cumsum([len(d) for d in documents])
    borders = sorted({0, len(flat), *(cut % (len(flat) + 1) for cut in cuts)})
    blocks = []
    for start, stop in itertools.pairwise(borders):
        inside = ends[(ends > start) & (ends <= stop)]
        counts = np.diff(np.concatenate(([start], inside)))
        blocks.append(TokenBlock(flat[start:stop], counts, 0))
    count = len(documents)
    column = np.arange(count, dtype=np.uint64)
    pieces = Pieces(column, column * np.uint64(3), column + np.uint64(7), column + np.uint64(1))
    writer = DirectoryWriter(StoreDir(folder))
    with PartWriter(writer, "train", token_type(1000), shard_tokens) as part:
        handed = list(write_part(part, pieces, iter(blocks)))
    lengths = [n for block in handed for n in block.document_tokens.tolist()]
    assert lengths == [len(d) for d in documents]
    writer.commit()
    return part.record


documents_ = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=30), min_size=1, max_size=12)


@settings(max_examples=40)
@given(documents_, st.integers(1, 50), st.lists(st.integers(0, 400), max_size=6), st.data())
def test_what_is_written_is_read_back_across_files(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    shard_tokens: int,
    cuts: list[int],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("part")
    record = written(folder, documents, shard_tokens, cuts)
    verify(StoreDir(folder))
    part = TokenPart(folder / "train", record, token_type(1000))
    flat = [t for d in documents for t in d]
    assert len(part) == len(flat) == sum(record.shards)
    assert max(record.shards) <= shard_tokens
    assert [part.document(i).tolist() for i in range(part.documents)] == documents
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    assert part.read(start, stop).tolist() == flat[start:stop]


def test_the_table_of_documents_keeps_where_they_came_from(tmp_path: Path) -> None:
    record = written(tmp_path, [[1, 0], [2, 2, 0], [0]], 100, [])
    part = TokenPart(tmp_path / "train", record, token_type(1000))
    assert part.column("start").tolist() == [0, 2, 5]
    assert part.column("text_bytes").tolist() == [0, 3, 6]
    assert part.column("source").tolist() == [7, 8, 9]
    assert part.column("number").tolist() == [1, 2, 3]
    assert part.text_bytes == 9
    assert part.bounds(2) == (5, 6)


def test_the_bytes_on_disk_are_those_of_the_format(tmp_path: Path) -> None:
    written(tmp_path, [[1, 258], [3]], 2, [])
    assert (tmp_path / "train" / "tokens-00000.bin").read_bytes() == b"\x01\x00\x02\x01"
    assert (tmp_path / "train" / "tokens-00001.bin").read_bytes() == b"\x03\x00"
    row = (tmp_path / "train" / "documents.bin").read_bytes()[32:]
    assert row == b"".join(n.to_bytes(8, "little") for n in (2, 3, 8, 2))


@pytest.mark.parametrize(("vocabulary", "size"), [(2, 2), (65_536, 2), (65_537, 4)])
def test_tokens_take_two_bytes_while_every_id_fits(vocabulary: int, size: int) -> None:
    assert token_type(vocabulary).itemsize == size


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (3, 2)])
def test_tokens_that_are_not_there_are_refused(tmp_path: Path, start: int, stop: int) -> None:
    part = TokenPart(tmp_path / "train", written(tmp_path, [[1, 2, 3, 4, 5, 6]], 4, []), token_type(1000))
    with pytest.raises(BadInput, match="there are 6"):
        part.read(start, stop)


def test_a_writer_that_fails_leaves_no_files(tmp_path: Path) -> None:
    part = PartWriter(DirectoryWriter(StoreDir(tmp_path)), "train", token_type(9), 4)
    with pytest.raises(RuntimeError, match="in the middle"):
        fail_within(part)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def fail_within(writer: PartWriter) -> None:
    with writer as part:
        part.add_tokens(np.arange(3))
        raise RuntimeError("in the middle")
