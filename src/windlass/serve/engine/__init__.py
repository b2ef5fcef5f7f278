"""Token ids in, token ids out: many requests computed together.

    server.py     a Unix socket: frames in, frames out; a connection that goes takes its requests along
    step.py       Engine.step(): schedule, run, sample
    schedule.py   who computes how many tokens in this step, and who holds which slot
    cache.py      keys and values of all running sequences, and attention over them
    sample.py     from scores to tokens, for the whole batch at once
    embed.py      sequences to unit vectors
    sequence.py   one request on its way

Requests join and leave between any two steps. What is sampled depends on the request's own seed and
positions only, so company does not change an answer and any engine can go on where another stopped.

Start at step.py.
"""
