"""Trains n-gram models on a corpus of any size, in bounded memory.

    tokens (`source`) -> windows of tokens, sorted and counted in blocks (`blocks`) -> runs on disk (`runs`)
           -> merged into one sorted stream -> the tree of all orders (`tree`, read through `mmap_arrays`)
           -> suffixes, and from them adjusted counts (`links`)
           -> `discounts`, then probabilities and backoffs (`estimate`) -> windlass.models.ngram.files

Sorted by the first word first, the windows of the highest order contain the sorted n-grams of every order as
prefixes. Kneser-Ney counts how many different words precede an n-gram; that is how many n-grams of the next
order have it as their suffix. So one sort is enough, where other tools need three.

`build` runs the stages in order and commits each; `run` does so as a training run. `settings` derives block
sizes from the memory limit. `executor` counts blocks in processes of this machine, `on_beam` on a cluster.
The estimates equal those of KenLM's lmplz (docs/decisions/0015-ngrams.md).

Start at `build`.
"""
