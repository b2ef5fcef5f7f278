"""Hidden Markov models on parameter servers: workers expect, servers add up and maximise.

hmm_shard.py is what a server holds, hmm_task.py what the first one decides, hmm_worker.py what a worker
computes. The arithmetic is train/hidden; sums are of whole numbers, so nothing depends on who added what, and
when.
"""
