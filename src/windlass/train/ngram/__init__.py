"""Counts n-grams in a corpus of any size and makes a model of them, in bounded memory.

    shards -> windows of tokens, sorted and counted in blocks (blocks.py) -> runs on disk (runs.py)
           -> merged into one sorted stream -> the tree of all orders (tree.py)
           -> suffixes, and from them adjusted counts (links.py)
           -> discounts (discounts.py), probabilities and backoffs (estimate.py) -> models/ngram/files.py

Sorted by the first word first, the windows of the highest order contain the sorted n-grams of every
order, as prefixes; and how many different words come before an n-gram, which is what Kneser-Ney counts,
is how many n-grams of the next order have it as their suffix. So one sort is enough, where others need
three.

build.py does the stages one after the other and commits each; run.py does so as a training run.
on_beam.py runs the counting on a cluster. The estimates are those of KenLM's lmplz
(docs/decisions/0015-ngrams.md).

Start at build.py.
"""
