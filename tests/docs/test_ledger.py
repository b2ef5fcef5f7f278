"""The page on the ledger is what the code does."""

import json
import re
from pathlib import Path

from windlass.corpus.batches import digest_of
from windlass.runs.audit import audit_records

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "ledger.md").read_text()
MASK = 2**64 - 1


def mix32(x: int) -> int:
    """The function of the page, word by word."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return (x ^ (x >> 31)) >> 32


def test_the_digest_of_the_page_is_that_of_the_code() -> None:
    for constant in ("0x9E3779B97F4A7C15", "0xBF58476D1CE4E5B9", "0x94D049BB133111EB"):
        assert constant in PAGE
    stated = re.findall(r"digest\((2\^40|\d+)\) = (\d+)", PAGE)
    assert [(2**40 if x == "2^40" else int(x), int(y)) for x, y in stated] == [
        (x, mix32(x)) for x in (0, 1, 2**40)
    ]
    assert digest_of(range(1000)) == sum(map(mix32, range(1000))) % 2**48


def test_the_record_that_the_page_shows_has_the_digest_of_its_samples() -> None:
    shown = re.search(r'\{"event": "ledger".*?\}\}', PAGE, re.DOTALL)
    assert shown is not None
    found = audit_records([json.loads(shown[0])])
    assert found.reasons == ["positions 0 to 959 were not used (960 samples)"]
