"""Text in, batches out.

    `sources`          the [corpus] table -> its files, and the digest that names the result
    `streams`          a file at any URL -> plain bytes, decompressed
    `readers`          files -> documents: text, JSONL, Parquet
    `clean`            documents -> cleaned text, fingerprints, and why documents were dropped
    `document_table`   all cleaned documents: text in one file, facts about each in memory
    `duplicates`       fingerprints -> which documents repeat an earlier one
    `split`            documents -> pieces of train and validation
    `train_tokenizer`  pieces -> a trained tokenizer
    `tokenise`         pieces -> token ids (`fast_tokenizer` is the quick path for our own tokenizers)
    `shards`           token ids -> memory-mapped files, and back; docs/formats/corpus.md
    `corpus_dir`       opens a finished corpus directory
    `batches`          which sample goes to which rank at which step: pure functions of (seed, position)

`build` runs the stages in this order on an `executor`: a process pool (`pool`) or Apache Beam (`on_beam`),
with the same bytes. `remote` keeps a corpus on a store, where many machines read it through a local cache.
`tokenizer` is the part that training and serving keep. `stats` counts; `growth` samples n-grams for the
planner.

Start at `build` for making a corpus, at `batches` for using one.
"""
