"""Prompts in over HTTP, text out: the half of the service that talks to people and knows no torch.

    __main__.py     the process: port, engine socket, graceful end
    app.py          the routes: a table of contents; serve/gateway/edge/fast_path.py takes the busiest past the framework
    http/transport.py    serve/gateway/edge/server.py, http/tls.py, http/write_coalescing.py: connections, their bounds, and how bytes leave
    serve/gateway/edge/middleware.py        what happens to every request: its journey (serve/gateway/observe/request_trace.py), its origin, its key
    serve/gateway/schemas/request_body.py       bytes -> JSON -> a checked request (serve/gateway/schemas/requests.py), or one clear refusal (serve/gateway/schemas/validation_errors.py)
    http/errors.py       every way to fail (codes.toml), one envelope; serve/gateway/routes/error_pages.py explains each
    serve/gateway/routes/pipeline.py    http/deadlines.py, idempotency.py: on which terms an answer is made
    serve/gateway/routes/completions.py  serve/gateway/routes/chat.py  serve/gateway/routes/embeddings.py    a checked request -> work for the engine -> serve/gateway/schemas/replies.py
    serve/gateway/routes/tokens.py  serve/gateway/routes/dry_run.py  serve/gateway/routes/complete_call.py  admin/    need no engine; control_client.py asks the control process
    serve/gateway/routes/generation.py   what completions and chat share: sampling settings, answers in the making
    http/streaming.py    answers that are sent while they are made; serve/gateway/schemas/frames.py writes them quickly
    serve/gateway/limits/request_cost.py    limits/: who is let in, how much at a time, and what is left out under overload
    fleet/          the replicas: routing, the wire to each (windlass.spec.protocol.wire), fail-over
    serve/gateway/text/tokenise.py  serve/gateway/text/detokenise.py  serve/gateway/text/templates.py      text <-> token ids
    service.py      the models that are served (serve/gateway/text/served_model.py), found by the names that requests give
    serve/gateway/observe/request_observer.py      what is made of a finished journey: serve/gateway/observe/gateway_metrics.py, serve/gateway/observe/access_log.py, serve/gateway/observe/traces.py
    http/static_files.py        the page

A request passes guard -> bodies -> completions -> limits -> fleet, and its tokens come back through
generation -> streaming. Start at app.py.
"""
