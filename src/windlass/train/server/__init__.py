"""Weights and optimizer in processes of their own; whoever computes gradients comes and goes.

    worker: asks the first server for work -> pulls weights from all -> learns (parallel.strategy)
            -> pushes its gradient to all, which write it to their logs -> says so to the first
    first server (chief.py): hands out batches (dispenser.py), commits updates on all servers, evaluates and
            saves at borders, keeps the journal and the ledger

shard.py is what one server holds (division.py says which part), updates.py what changes it, log.py what it
could not do without after a death. frames.py is how they speak (docs/formats/server.md), hall.py who listens
to whom, peers.py how the first server speaks to the others, worker.py the other side. book.py keeps the
ledger, requests.py takes what people ask, telling.py tells. `operate.server_run` starts them all and replaces
the dead.

An update is committed by two phases: a gradient counts once all servers have it in their logs and its worker
has said so to the first, which writes down the commit before anybody applies it. So a death at any moment
leaves an update whole or undone.

Start at chief.py.
"""
