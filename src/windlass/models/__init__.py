"""Tokens in, logits out: the model families, written for one device.

    Shape (spec) -> `build` -> a LanguageModel (`language`): `llama`, `gpt2`, `bert`, `mlp`, over `attention`;
    `loss` computes the cross-entropy of a model's final states
    a Hugging Face directory (`files`) -> `weights`, over `mmap_tensors` and without torch -> `huggingface`
    -> a model; `names` maps our tensor names to theirs, `sizes` gives the shape of every weight
    a model -> `huggingface` -> `tensors`: the files; `quantised` stores matrices as small integers

Families whose whole past is a small state (`recurrent_state`) run in numpy: `ngram`, `hmm`, and `mlp_numpy`,
which serves the MLP. `word2vec` learns token vectors (`word2vec_native` calls its C++ library,
`word2vec_files` reads and writes them); `nearest_tokens` searches them. `native_loader` opens our native
libraries.

Code that distributes a model over devices does so from outside; nothing here knows of it. The family
files have one structure: the model, its block, the parts of the block.

Start at `language`, then `llama`.
"""
