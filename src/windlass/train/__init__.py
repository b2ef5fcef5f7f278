"""Batches in, checkpoints out.

    run.json -> loop.py -> trainer.py: batch (data_loader.py) -> loss and gradients (parallel.strategy)
             -> exchange between replicas (train/sync/policy.py decides, train/sync/data_parallel.py does) ->
             update (optimize.py) -> now and then evaluate.py, sample.py, train/checkpoint/manager.py
             (train/checkpoint/async_save.py) -> result.py

All processes of a run do this together, each with its part of the model; placement.py says which. A pipeline
that does not stop between batches has a trainer of its own (train/async_pipeline/async_trainer.py,
train/async_pipeline/tied_embedding.py). Checkpoints are written in parts (train/checkpoint/shard.py) and read
by anybody (train/checkpoint/reader.py). Journal, TensorBoard and the parent process hear of it through
event_log.py; ledger.py writes down which samples each step used. runtime_settings.py takes what people ask of
a run while it goes on.

In an elastic run a process is a worker (train/elastic/worker.py): it trains in one company after the other,
as the coordinator says (train/elastic/coordinator_client.py), and keeps its memory. A new company comes to
one state in train/elastic/state_sync.py, by train/elastic/state_transfer.py from memory to memory. Where the
bits shall not depend on the company, train/sync/deterministic_reduce.py adds up the gradients.

An mlp may begin with vectors that its run learns before the first step (word2vec/).
With parameter servers (server/) weights and optimizer are in processes of their own, and a worker is whoever
computes gradients for them.

The order of samples and the masks are pure functions of position, so a run is
resumed from a checkpoint and one integer, under any layout; lab/torch/layout_proof.py shows that.

Start at loop.py.
"""
