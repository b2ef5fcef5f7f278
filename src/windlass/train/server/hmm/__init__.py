"""Hidden Markov models on parameter servers: workers do the E-step, servers add up and do the M-step.

`hmm_shard` is what a server holds, `hmm_task` what the primary decides, `hmm_worker` what a worker computes.
The arithmetic is in windlass.train.hmm; sums are of integers, so they do not depend on the order of addition.
"""
