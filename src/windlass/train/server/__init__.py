"""What is learnt lies in processes of its own; whoever computes comes and goes.

    worker: asks the first server for work -> pulls values from all -> computes
            -> pushes to all, which write it to their logs -> says so to the first
    first server (primary.py): hands out batches (work_queue.py), commits updates (updates.py) on all servers,
            and does at borders what its course says

Three rooms say what is learnt, each with the same three files: network/ (any model that learns by gradients),
vectors/ (word2vec), hidden/ (hidden Markov models). shard_state.py is what a server holds, task.py what the
first server decides, worker.py what a worker computes; stages.py chooses. shard.py keeps pushes until their
commit, log.py what a server could not do without after a death. frames.py is how they speak
(docs/formats/server.md), rpc_server.py who listens to whom, peers.py how the first server speaks to the
others, connections.py and worker.py the other side. `runs.server_run` starts them all and replaces the dead.

An update is committed by two phases: a push counts once all servers have it in their logs and its worker has
said so to the first, which writes down the commit before anybody applies it. So a death at any moment leaves
an update whole or undone.

Start at primary.py.
"""
