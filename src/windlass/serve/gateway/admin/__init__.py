"""The service's records over HTTP, for keys with the scope admin.

`keys`, `tenants` and `rollouts` change records; every change is in the audit log, which `audit` shows.
`limits` shows what is left of each budget, `replicas` which engines are connected. `control` forwards to the
control process: runs, registered models, plans. `shared` has what these routes have in common: the database,
the actor for the audit log, errors in the API's codes. `requests` and `replies` are the bodies.

The records are those of windlass.serve.records, which the command line changes too. Start at `keys`.
"""
