"""The worker of an elastic run.

`fork_server` starts workers quickly. A `worker` trains in one generation after another; `coordinator_client`
is its connection to the coordinator. When a generation begins, `state_sync` brings all members to the same
state, from memory where possible (`state_transfer`). `error_summary` says why a worker left a generation.
"""
