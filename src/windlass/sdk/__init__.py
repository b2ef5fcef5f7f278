"""Windlass from someone else's program.

    with Client("http://127.0.0.1:8000", key="wlk_...") as client:    # or $WINDLASS_KEY
        print(client.complete("Once upon a time", max_tokens=50).text)
        for piece in client.stream("Once upon a time"):
            ...

    with Jobs("http://127.0.0.1:8100", key) as jobs:
        jobs.set("poems", {"train.learning_rate": 1e-4})

client.py is a small typed client of the API that serves models; any OpenAI client works as well. jobs.py is
one of the control API, which lists runs and changes them while they go on.

Start at client.py.
"""

from windlass.sdk.client import Client, Completion
from windlass.sdk.connection import ServiceFailed
from windlass.sdk.jobs import Jobs

__all__ = ["Client", "Completion", "Jobs", "ServiceFailed"]
