"""GGUF files, as llama.cpp writes and reads them, without torch.

    FILE.gguf -> `reader` -> `hf_config` (over `architectures`) and `tensor_plan` (over `dequantise`)
              -> `safetensors_stream` -> a Hugging Face directory: `import_file`
    its vocabulary -> `tokenizer_files`

`ggml_types` lists the number formats; `writer` writes files. Nothing of a file is trusted: `reader` checks
every length first.

Start at `import_file`.
"""
