"""A client of `windlass prove sites` on its own node: our SDK with the addresses of all sites.

    python -m windlass.lab.proofs.sites.sdk_probe_client URL,URL MODEL

Sends requests all the time; each answer is a line of JSON with its time. The key is in $WINDLASS_KEY.
"""

from __future__ import annotations

import sys
import time

from windlass.sdk.client import Client
from windlass.spec.errors import WindlassError
from windlass.spec.protocol.entrypoint import die_with_parent, emit

PAUSE_S = 0.1


def main(urls: str, model: str) -> None:
    die_with_parent()
    client = Client(urls.split(","), model=model)
    while True:
        emit({"answered": _answered(client), "time": time.time()})
        time.sleep(PAUSE_S)


def _answered(client: Client) -> bool:
    try:
        client.complete("The anchor", max_tokens=4, temperature=0, deadline=10)
    except WindlassError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
