"""Prompts in, tokens out: two processes that meet only on the wire (windlass.spec.protocol.wire).

    a client -> gateway (HTTP, text, limits) -> the wire -> engine (token ids) -> tokens stream back

The gateway never loads torch and outlives a crashing engine; the engine never sees text. vllm/ is another
engine behind the same wire: a vLLM server on a machine with a GPU. figures/ is how several processes count
together, and records/ what they share in the service's database.

Start at gateway/__init__.py for what clients see, at engine/step.py for how tokens are made.
"""
