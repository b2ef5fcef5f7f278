"""vLLM as the engine: our wire in front, vLLM's OpenAI server behind.

    `__main__`    the process: starts vLLM, waits until it answers, serves the wire, ends both together
    `child`       the vLLM server as a child process: command line, health check, stop
    `bridge`      a Unix socket: frames in, HTTP streams to vLLM and back
    `translate`   pure: our messages to vLLM's requests, its events to our messages

The gateway cannot tell it from our own engine. docs/serving.md lists the differences: no embeddings, and
sampled answers do not resume byte for byte.

Start at `__main__`.
"""
