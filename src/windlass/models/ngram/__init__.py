"""n-gram models: how likely each token is after the few before it.

    model.safetensors (docs/formats/ngram.md) -> files.py, mapped -> Levels (trie.py) -> Ngram (model.py)
    Ngram asks native.py, the library in C++, or trie_numpy.py, the same in numpy
    text of whole sentences -> sentences.py -> their probabilities
    an ARPA file -> arpa.py -> Levels, and back

train/counting makes such models from a corpus. Nothing here needs torch.

Start at trie.py, then model.py.
"""

from windlass.models.ngram.files import load

__all__ = ["load"]
