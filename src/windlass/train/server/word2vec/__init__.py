"""Vectors of tokens on parameter servers: workers pull the rows that their pairs touch, and push their moves.

word2vec_shard.py is what a server holds, word2vec_task.py what the first one decides, word2vec_worker.py what
a worker computes. pair_batches.py says which pairs a batch is. The arithmetic is models/word2vec.py.
"""
