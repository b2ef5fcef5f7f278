"""Admission: who may send how much, and what the service refuses under overload.

`admission_controller` admits a request by its `request_cost`, in this order: brown-out level, waiting time,
quotas, places at the engines; when the request has ended, it returns what was not used. `limit_rules` finds
the limits of a caller. `quota_client` holds this gateway's leases (`quota_lease`) of shared budgets and
renews them in a thread ahead of need. `estimate` predicts how long a request takes, from `backlog`, the
requests in progress for one model version.
`brown_out` decides how much the service reduces its work. `limit_errors` words the refusals.

The budgets themselves are windlass.serve.records.bucket (rules) and .quotas (tables). Start at
`admission_controller`.
"""
