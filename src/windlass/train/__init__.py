"""Trains models: batches in, checkpoints and a model out.

    run.json -> `loop` -> `trainer`: batch (`data_loader`, `objective`)
             -> loss and gradients (parallel.strategy) -> synchronise replicas (`sync`) -> update (`optimize`)
             -> at intervals `evaluate`, `sample` and `checkpoint` -> `result`: the model directory

All processes of a run do this together, each with its part of the model; `placement` decides which,
`step_sync` combines their reports of a step in one all-reduce, and `collective_errors` raises an error of one
rank on all. `compile_model` applies torch.compile, `machine_flops` measures the machine's peak, and `replan`
adjusts the number of steps to a time budget. `async_pipeline` is the trainer of a pipeline that does not
drain between batches.

`event_log` writes events to the journal, TensorBoard and the parent process; `ledger` records which samples
each step used. `runtime_settings` applies settings that users change while the run is active.
`checkpoint_verify` checks a checkpoint in a process of its own. `evaluate_model` and `scoring` evaluate a
finished model; `probe` measures the machine for the planner.

In an elastic run (`elastic`) a process is a worker that trains in one generation after another and keeps its
state in memory. With parameter servers (`server`) weights and optimizer are in processes of their own, and
workers compute gradients. `hmm` and `ngram` train statistical models; `word2vec` trains vectors from which an
mlp may start.

The order of samples and the masks are pure functions of position, so a run resumes from a checkpoint and one
integer, under any layout; windlass.lab.torch.layout_proof shows that.

Start at `loop`.
"""
