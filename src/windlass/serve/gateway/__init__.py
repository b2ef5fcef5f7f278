"""Prompts in over HTTP, text out: the half of the service that talks to people and knows no torch.

    __main__.py     the process: port, engine socket, graceful end
    app.py          the routes: a table of contents; shortcut.py takes the busiest past the framework
    transport.py    server.py, tls.py, cork.py: connections, their bounds, and how bytes leave
    guard.py        what happens to every request: its journey (telemetry.py), its origin, its key
    bodies.py       bytes -> JSON -> a checked request (messages.py), or one clear refusal (refusals.py)
    errors.py       every way to fail (codes.toml), one envelope; error_pages.py explains each
    answering.py    deadlines.py, idempotency.py: on which terms an answer is made
    completions.py  chat.py  embeddings.py    a checked request -> work for the engine -> replies.py
    tokens.py  dry_run.py  complete_call.py  admin/    need no engine; upstream.py asks the control process
    generation.py   what completions and chat share: sampling settings, answers in the making
    streaming.py    answers that are sent while they are made; frames.py writes them quickly
    admission.py    limits/: who is let in, how much at a time, and what is left out under overload
    fleet/          the replicas: routing, the wire to each (windlass.spec.wire), fail-over
    text.py  detokenise.py  templates.py      text <-> token ids
    service.py      the models that are served (served.py), found by the names that requests give
    witness.py      what is made of a finished journey: metrics.py, access_log.py, traces.py
    pages.py        the page

A request passes guard -> bodies -> completions -> limits -> fleet, and its tokens come back through
generation -> streaming. Start at app.py.
"""
