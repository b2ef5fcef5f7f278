"""Vocabularies of other formats as tokenizer.json, without torch and without their libraries.

    tokenizer.model -> `sentencepiece_model` -> `scored_pieces` (also of GGUF)  \\
    a tiktoken file -> `tiktoken_file`, over `pretokenizers`                     -> `convert_directory`

`special_tokens` has the parts that all of them need.
"""
