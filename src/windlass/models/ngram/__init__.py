"""n-gram models: the probability of each token after the few before it.

    model.safetensors (docs/formats/ngram.md) -> `files`, mapped -> Levels (`trie`) -> NgramModel (`model`)
    NgramModel computes with `native`, the library in C++, or `trie_numpy`, the same in numpy
    text of whole sentences -> `sentences` -> their probabilities
    an ARPA file -> `arpa` -> Levels, and back

train/ngram makes such models from a corpus. Nothing here needs torch.

Start at `trie`, then `model`.
"""

from windlass.models.ngram.files import load

__all__ = ["load"]
