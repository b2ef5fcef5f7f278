"""Many engines behind one interface: which replica answers, and fail-over when it cannot.

    service.submit -> fleet.submit -> routing (which replica) -> engine_link (the wire) -> engine
    engine -> engine_link -> fleet (progress, failures) -> request_handle -> the route that waits

`request_handle` keeps the prompt, the tokens sent so far and the seed of each answer, so any replica can
continue it from the next character. `replica_pool` holds one `engine_link` for each replica. `routing` is a
pure decision. `known_grammars` remembers grammars that an engine has compiled safely.
`fleet_metrics` counts; `reports` collects what `supervisor_client` sends to the supervisor, which answers
with routing tables. Start at `fleet`.
"""
