"""The page on the service's state has every table and column, and its example is sealed as the code seals."""

import json
import re
from pathlib import Path

from windlass.serve.records.audit_log import NOTHING, seal
from windlass.serve.records.state import open_state
from windlass.store.database import sqlite_url

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "service-state.md").read_text()


def columns_of_the_page() -> dict[str, set[str]]:
    """Read the tables: a row without a table's name goes on with the one above."""
    found: dict[str, set[str]] = {}
    table = ""
    for cells in (line.split("|") for line in PAGE.splitlines() if line.startswith("| ")):
        named = re.findall(r"^ `(\w+)` $", cells[1])
        if len(cells) == 6 and (named or cells[1].isspace()):
            table = named[0] if named else table
            found.setdefault(table, set()).update(re.findall(r"`(\w+)`", cells[2]))
    return found


def test_every_table_and_column_is_on_the_page(tmp_path: Path) -> None:
    state = open_state(sqlite_url(tmp_path / "service.db"))
    tables = [row[0] for row in state.read("SELECT name FROM sqlite_master WHERE type = 'table'")]
    made = {
        table: {row[0] for row in state.read("SELECT name FROM pragma_table_info(?)", table)}
        for table in tables
    }
    state.close()
    assert columns_of_the_page() == made


def test_the_record_on_the_page_has_the_hash_on_the_page() -> None:
    record = re.search(r"^    (\[1,.*\])$", PAGE, re.MULTILINE)
    stated = re.search(r"^    hash: (\w{64})$", PAGE, re.MULTILINE)
    assert record is not None
    assert stated is not None
    assert seal(json.loads(record[1])) == stated[1]
    assert json.loads(record[1])[-1] == NOTHING
