"""The inference engine: token ids in, token ids out, many requests computed together (continuous batching).

    `server`          a Unix socket: frames in, frames out; a closed connection cancels its requests
    `build`           builds what is served from the command line: one engine (`load`), or a pool of models
    `engine_api`      the protocol that all engines implement: add, step, forget
    `model_pool`      several models (`model_slot`); the least recently used is unloaded when memory runs low

    `step`            Engine.step(): schedule, run, sample
    `scheduler`       which sequences compute how many tokens in this step, and which are preempted
    `block_manager`   blocks of keys and values, and the tree of prefixes that sequences share
    `sequence`        the state of one request; `embed`: of a request for vectors
    `speculative`     drafts of the next tokens, verified in the same step
    `runner`          the protocol of what computes: `native_runner` by native/*.cpp (bound in `native`),
                      `torch_runner` for GPUs, `state_runner` for the statistical families
    `sampler`         from scores to tokens, for the whole batch; `sampler_numpy`: the same rules in numpy
    `grammar`         structured output: a mask of the tokens that may come next
    `encoder`         the engine of bidirectional models (bert), which return vectors only

    `adapters`        LoRA matrices beside a model's own; `torch_adapters` applies them in the torch runner
    `quantise`        8 and 4 bit weights; `compression` writes such model directories and measures the loss

Requests join and leave between any two steps. A sampled token depends only on its request's seed and its
position, so the batch does not change an answer, and any engine can resume where another stopped.

Start at `step`.
"""
