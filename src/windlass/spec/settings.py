"""What may be changed while a run goes on. The file is docs/formats/settings.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from windlass.spec.sync import Sync
from windlass.spec.table import Table

SETTINGS = "settings.json"


class Settings(Table):
    """A request to a run: from the next step border on, train with these."""

    id: Annotated[int, Field(ge=1)]
    """Counts the requests to one run; a trainer takes each once."""
    sync: Sync
