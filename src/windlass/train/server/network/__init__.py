"""Networks on parameter servers: AdamW on the servers, gradients from the workers.

`network_shard` is what a server holds, `network_task` what the primary decides, `network_worker` what a
worker computes. `commit_order` keeps the sample ledger, `settings_requests` applies runtime settings,
`events` logs steps; `task_context` is the view of the task that these three use.
"""
