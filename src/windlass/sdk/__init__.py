"""Windlass from someone else's program.

    with Client("http://127.0.0.1:8000") as client:
        print(client.complete("Once upon a time", max_tokens=50).text)
        for piece in client.stream("Once upon a time"):
            ...

client.py is the whole of it: a small typed client of the HTTP API. Any OpenAI client works as well.

Start at client.py.
"""

from windlass.sdk.client import Client, Completion, ServiceFailed

__all__ = ["Client", "Completion", "ServiceFailed"]
