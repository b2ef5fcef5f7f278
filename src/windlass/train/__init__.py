"""Batches in, checkpoints out.

    run.json -> loop.py -> trainer.py: batch (feed.py) -> loss and gradients (parallel.strategy)
             -> exchange between replicas (sync.py decides, replicas.py does) -> update (optimize.py)
             -> now and then evaluate.py, sample.py, checkpoint.py -> result.py

All processes of a run do this together, each with its part of the model; settle.py says which. A pipeline
that does not stop between batches has a trainer of its own (asynchronous.py, tied.py). Checkpoints
are written in parts (part.py) and read by anybody (assemble.py). Journal, TensorBoard and the parent process
hear of it through record.py. The order of samples and the masks are pure functions of position, so a run is
resumed from a checkpoint and one integer, under any layout; prove.py shows that.

Start at loop.py.
"""
