"""The parts of the lab that compute with torch, each started as a process.

`__main__` is the entry point of the training benches: `train_bench` (against `hf_baseline`), `layouts_bench`
(with `bench_worker`), `async_bench`, `elastic_bench`, `sync_bench`, `ngram_bench` (against `kenlm_peer`),
`hmm_bench` and `word2vec_bench`. `machine_limits` measures the machine's peak. `layout_proof`,
`save_crash_proof` and `families_proof` (over `family_cases`) do the work of `windlass prove layouts`, `prove
saves` and `prove families`, `gguf_answers` our side of `windlass prove gguf`.
"""
