"""Serves models: a gateway process and engine processes, which speak the wire (windlass.spec.protocol.wire).

    client -> gateway (HTTP, text, limits) -> the wire -> engine (token ids) -> tokens stream back

    `gateway`   the HTTP server: keys, quotas, routing, tokenising; never loads torch, survives engine crashes
    `engine`    continuous batching over token ids; it never sees text
    `vllm`      another engine behind the same wire: a vLLM server on a machine with a GPU
    `metrics`   Prometheus metrics that several processes share
    `records`   what the processes keep in the service's database: keys, tenants, quotas, the audit log

Start at `gateway` for what clients see, at `engine.step` for how tokens are made.
"""
