"""Text in, batches out.

    sources.py    a corpus table -> the files it names, and the digest that names the result
    readers.py    files -> documents: text, JSONL, Parquet, plain or compressed, from any store
    clean.py      documents -> cleaned text, fingerprints, and the reasons for what was dropped
    duplicates.py fingerprints -> which documents repeat an earlier one
    split.py      documents -> pieces of train and validation
    train_tokenizer.py pieces -> a trained tokenizer
    tokenise.py   pieces -> token ids (fast_tokenizer.py is the quick way for our own tokenizers)
    shards.py     token ids -> memory-mapped files, and back; docs/formats/corpus.md
    batches.py    which sample, for whom, when: pure functions of (seed, position)

A corpus may be kept on a store and read from there by many machines:

    corpus/remote/published.py     a corpus directory -> a store, and from there a directory without its tokens
    corpus/remote/cache.py      a token file that is not here -> fetched, verified, kept on local disk within a limit;
                  corpus/remote/disk_cache.py is that disk, shared by processes, corpus/remote/eviction.py the
                  policies, corpus/remote/prefetch.py the prefetch, corpus/remote/remote_part.py what a part
                  sees of it

build.py runs the stages in this order, by executor.py: a process pool (pool.py), or Apache Beam (on_beam.py)
with the same bytes; tokenizer.py is what training and serving keep of it; stats.py counts;
lab/bench/tokenise.py measures.

Start at build.py for making a corpus, at batches.py for using one.
"""
