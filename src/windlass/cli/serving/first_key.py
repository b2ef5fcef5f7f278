"""The administrator's key of a service: made at its first start, shown once."""

from __future__ import annotations

from windlass.serve.records.keys import ensure_first_key
from windlass.serve.records.state import open_state
from windlass.spec.serve import Serve


def first_key(serve: Serve) -> str | None:
    """Make the administrator's key of a service that never had one; only its digest is stored."""
    if serve.open or serve.state is None:
        return None
    database = open_state(serve.state)
    try:
        return ensure_first_key(database)
    finally:
        database.close()


def show_key(key: str | None, url: str, model: str) -> None:
    """Print a new key, with a first request that works as printed."""
    if key is None:
        return
    insecure = " --insecure" if url.startswith("https:") else ""
    print(
        f"""
This is the administrator's key. It is shown only once; `windlass keys` makes others.

  export WINDLASS_KEY={key}
  curl{insecure} {url}/v1/completions -H "Authorization: Bearer $WINDLASS_KEY" \\
       -H 'content-type: application/json' -d '{{"model": "{model}", "prompt": "The", "max_tokens": 20}}'
""",
        flush=True,
    )
