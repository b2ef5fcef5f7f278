"""Vectors of tokens on parameter servers: workers pull the rows that their pairs touch, and push their moves.

part.py is what a server holds, course.py what the first one decides, worker.py what a worker computes.
grid.py says which pairs a batch is. The arithmetic is models/word2vec.py.
"""
