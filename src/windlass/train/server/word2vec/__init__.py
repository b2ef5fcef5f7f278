"""word2vec on parameter servers: workers pull the rows that their pairs touch, and push the changes.

`word2vec_shard` is what a server holds, `word2vec_task` what the primary decides, `word2vec_worker` what a
worker computes. `pair_batches` defines the batches of pairs. The arithmetic is in windlass.models.word2vec.
"""
