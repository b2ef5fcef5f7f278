"""GGUF files, as llama.cpp writes and reads them, without torch.

    FILE.gguf -> `reader` -> `hf_config` (over `architectures`) and `tensor_plan` (over `dequantise`)
              -> `safetensors_stream` -> a Hugging Face directory: `import_file`
    its vocabulary -> `tokenizer_files`
    and back: `export_file` over `metadata`, `vocabulary_metadata` and `quantise` -> `writer`

`ggml_types` lists the number formats. Nothing of a file is trusted: `reader` checks every length first.

Start at `import_file`.
"""
