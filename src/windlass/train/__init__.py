"""Batches in, checkpoints out.

    run.json -> loop.py -> trainer.py: batch (feed.py) -> loss and gradients (parallel.strategy)
             -> exchange between replicas (sync.py decides, replicas.py does) -> update (optimize.py)
             -> now and then evaluate.py, sample.py, tiers.py (checkpoint.py) -> result.py

All processes of a run do this together, each with its part of the model; settle.py says which. A pipeline
that does not stop between batches has a trainer of its own (asynchronous.py, tied.py). Checkpoints
are written in parts (part.py) and read by anybody (assemble.py). Journal, TensorBoard and the parent process
hear of it through record.py; ledger.py writes down which samples each step used. control.py takes what
people ask of a run while it goes on.

In an elastic run a process is a worker (elastic.py): it trains in one company after the other, as the
coordinator says (post.py), and keeps its memory. A new company comes to one state in reunion.py, by moves.py
from memory to memory. Where the bits shall not depend on the company, ordered.py adds up the gradients.

An mlp may begin with vectors that its run learns before the first step (word2vec/).
With parameter servers (server/) weights and optimizer are in processes of their own, and a worker is whoever
computes gradients for them.

The order of samples and the masks are pure functions of position, so a run is
resumed from a checkpoint and one integer, under any layout; prove.py shows that.

Start at loop.py.
"""
