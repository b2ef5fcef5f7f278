"""Training runs: prepared, started, followed, resumed, reported.

`training` prepares and starts a run; `elastic_run`, `server_run` and `cluster_run` start the other kinds;
`member` is one machine of a run on a cluster; `detached` starts training that outlives its terminal.
`follower` and `progress_line` show progress. `run_status` lists and describes runs, `run_settings` changes
them while they run. `tail` follows a journal; `clock_skew` corrects its times; `goodput`, `incidents` and
`audit` report from it; `verify` reloads the newest checkpoint. `show_partition` draws how a model is cut.
`planning` starts the processes that the planner needs.
"""
