"""Hidden Markov models on parameter servers: workers expect, servers add up and maximise.

part.py is what a server holds, course.py what the first one decides, worker.py what a worker computes. The
arithmetic is train/hidden; sums are of whole numbers, so nothing depends on who added what, and when.
"""
