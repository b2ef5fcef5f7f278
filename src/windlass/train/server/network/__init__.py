"""Networks on parameter servers: AdamW on the servers, gradients from the workers.

network_shard.py is what a server holds, network_task.py what the first one decides, network_worker.py what a
worker computes. commit_order.py keeps the ledger, settings_requests.py takes what people ask, events.py
tells.
"""
