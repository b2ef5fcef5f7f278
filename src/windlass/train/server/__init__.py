"""Training on parameter servers: servers hold the weights, workers come and go.

    worker: requests a task from the primary -> pulls values from all servers -> computes
            -> pushes to all servers, which write the push to their logs -> reports to the primary
    primary (server 0): hands out batches (`work_queue`), commits `updates` on all servers, and at boundaries
            evaluates, saves and applies settings, as its `task` decides

Three sub-packages implement what is trained, each with the same three modules: `network` (any model trained
by gradients), `word2vec` (token vectors) and `hmm` (hidden Markov models). They implement the protocols
`shard_state` (what a server holds), `task` (what the primary decides) and `worker` (what a worker computes);
`stages` chooses among them and runs a worker through all stages of a run.

`primary` is the main loop of server 0. `shard` keeps pushes until their commit, `log` lets a server recover
after a crash, `sharding` divides weights among servers. `frames` is the wire format (docs/formats/server.md),
`rpc_server` accepts connections, `peers` connects the primary to the other servers, and `connections` a
worker to all servers. windlass.runs.server_run starts all processes and replaces those that die.

An update is committed in two phases: a push counts once all servers have it in their logs and its worker has
reported it to the primary, which logs the commit before any server applies it. So a crash at any moment
leaves an update either complete or undone.

Start at `primary`.
"""
