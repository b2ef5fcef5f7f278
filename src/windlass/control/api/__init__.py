"""The control API: what `windlass jobs`, `models` and `plan` do, over HTTP.

`control_server` listens, `control_process` does so inside a service. `app` has the routes: runs, `journal`,
`models`, `plans` (computed by `planner` processes of `planner_pool`) and `queue`. `middleware` checks the key
of every request (`control_keys`), `bodies` reads what was sent, `control_errors` is how it refuses.
"""
