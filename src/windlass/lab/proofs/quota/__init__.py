"""`windlass prove limits`: limits hold across gateways that take from the same budgets as fast as they can.

`quota_proof` starts load workers, kills one, freezes another, and compares what they took with the limits.
`load_worker` is one of them: a gateway's quota client under constant load.

Start at `quota_proof`.
"""
