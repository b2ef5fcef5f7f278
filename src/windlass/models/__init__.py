"""Tokens in, logits out: the model families, written for one device.

    Shape (spec) -> `build` -> a LanguageModel (`language`): `decoder`, `bert`, `mlp`
    a decoder: `attention` and `feed_forward` (experts too), `norms` before and after, `rotary` positions;
    `loss` computes the cross-entropy of a model's final states
    a Hugging Face directory (`files`) -> `weights`, over `mmap_tensors` and without torch -> `huggingface`
    -> a model; `names` maps our tensor names and arrangements to theirs
    a model -> `huggingface` -> `tensors`: the files; `quantised` stores matrices as small integers

`gguf` reads GGUF files into the same directories; `vocabulary` makes tokenizer.json of other formats,
and `packed` writes GPTQ and AWQ weights as plain ones.

Families whose whole past is a small state (`recurrent_state`) run in numpy: `ngram`, `hmm`, and `mlp_numpy`,
which serves the MLP. `word2vec` learns token vectors (`word2vec_native` calls its C++ library,
`word2vec_files` reads and writes them); `nearest_tokens` searches them. `native_loader` opens our native
libraries.

Code that distributes a model over devices does so from outside; nothing here knows of it. There is one
decoder: a family is a row of features in spec/model/decoder.py, and the parts named above implement each
feature once.

Start at `language`, then `decoder`.
"""
