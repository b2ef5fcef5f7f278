"""Networks on parameter servers: AdamW on the servers, gradients from the workers.

`network_shard` is what a server holds, `network_task` what the primary decides, `network_worker` what a
worker computes. `commit_order` keeps the sample ledger, `events` logs steps.
"""
