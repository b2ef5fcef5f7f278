"""Vectors of tokens by skip-gram with negative sampling, before a context MLP learns from them.

    counts of tokens -> passes over the text, a chunk at a time -> vectors in the run's folder

learner.py is those stages: bounded memory, seeded, a checkpoint after each pass and where it is stopped.
start.py lets the first process of a run do them while the others wait. The arithmetic is models/word2vec.py.

Start at learner.py.
"""
