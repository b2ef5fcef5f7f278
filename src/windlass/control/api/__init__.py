"""The control API: what `windlass jobs`, `models` and `plan` do, over HTTP.

`control_server` listens; `control_process` is the process that does so inside a service. `middleware` checks
the key of every request (`control_keys`); `app` has the routes of runs and includes `models` (registry),
`plans` (computed by `planner` processes of `planner_pool`) and `queue` (cluster jobs). `bodies` reads request
bodies, `journal` streams the records of a run, `control_errors` has the error codes. Start at `app`.
"""
