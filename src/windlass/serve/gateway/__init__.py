"""Prompts in over HTTP, text out: the half of the service that talks to people and knows no torch.

    __main__.py     the process: port, engine socket, graceful end
    app.py          the routes: a table of contents
    guard.py        what happens to every request: its journey (telemetry.py), its origin, its key
    bodies.py       bytes -> JSON -> a checked request (messages.py), or one clear refusal (errors.py)
    completions.py  chat.py  embeddings.py    a checked request -> work for the engine -> replies.py
    generation.py   what completions and chat share: sampling settings, answers in the making
    fleet/          the replicas: routing, the wire to each (windlass.spec.wire), fail-over
    text.py  detokenise.py  templates.py      text <-> token ids
    service.py      the models that are served (served.py), found by the names that requests give
    witness.py      what is made of a finished journey: metrics.py, access_log.py, traces.py
    pages.py        the page

A request passes guard -> bodies -> completions -> fleet, and its tokens come back through
generation -> streaming. Start at app.py.
"""
