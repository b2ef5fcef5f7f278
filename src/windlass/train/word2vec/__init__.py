"""Trains token vectors by skip-gram with negative sampling, from which a context MLP starts.

    counts of tokens -> passes over the text, a chunk at a time -> vectors in the run's folder

`learner` runs these stages: bounded memory, seeded, a checkpoint after each pass and when it is stopped.
`start` lets rank 0 of a run do this while the other ranks wait. The arithmetic is in
windlass.models.word2vec.

Start at `learner`.
"""
