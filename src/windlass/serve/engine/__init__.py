"""Token ids in, token ids out: many requests computed together.

    server.py      a Unix socket: frames in, frames out; a connection that goes takes its requests along
    build.py     from the command line to what is served: one engine (load.py), or a shelf of several
    engine_api.py     the face that all of these have: add, step, forget
    model_pool.py       several models (model_slot.py), of which as many are in memory as fit

    step.py        Engine.step(): schedule, run, sample
    scheduler.py    who computes how many tokens in this step, and who is set aside
    block_manager.py      blocks of keys and values, and which of them begin other prompts too
    sequence.py    one request on its way; embed.py: one that becomes vectors; speculative.py: guesses ahead
    runner.py      what computes: native_runner.py by native/*.cpp, torch_runner.py for GPUs,
                   state_runner.py for the statistical families
    sampler.py        from scores to tokens, for the whole batch at once; serve/engine/grammar/token_mask.py: only those that are allowed
    encoder.py     the engine of models that see both sides of a token

    adapters.py    LoRA matrices beside a model's own
    quantise.py    8 and 4 bits, serve/engine/compression/compress.py a directory of them, serve/engine/compression/perplexity.py what they cost

Requests join and leave between any two steps. What is sampled depends on the request's own seed and
positions only, so company does not change an answer and any engine can go on where another stopped.

Start at step.py.
"""
