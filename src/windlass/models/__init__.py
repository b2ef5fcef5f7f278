"""Tokens in, scores out: the model families, written for one device.

    Shape (spec) -> build.py -> a LanguageModel (language.py): llama.py, gpt2.py, bert.py, mlp.py
    a Hugging Face directory -> weights.py, over mapped files and without torch -> huggingface.py -> a model
    a model -> huggingface.py -> tensors.py: the files (names.py: which tensor is which)

Whatever spreads a model over devices does so from outside; nothing here knows of it. The family
files have one structure: the model, its block, the parts of the block.

Start at language.py, then llama.py.
"""
