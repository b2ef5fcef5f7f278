"""vLLM as the engine: our wire in front, its OpenAI server behind.

    __main__.py    the process: starts vLLM, waits until it answers, serves the wire, ends both together
    child.py       the vLLM server as a child process: command, health, end
    bridge.py      a Unix socket: frames in, HTTP streams out and back
    translate.py   pure: our messages to vLLM's requests, its events to our messages

The gateway cannot tell it from our own engine. What differs is said in docs/serving.md: no embeddings, and
sampled answers do not resume byte for byte.

Start at __main__.py.
"""
