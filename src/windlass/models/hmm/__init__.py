"""Hidden Markov models: a hidden state emits each token and determines the next state.

    a directory -> `weights`: three tables of probabilities -> `model`: states in, log-probabilities out
    tokens -> `viterbi`: their most likely states

`deterministic_matmul` multiplies so that no row depends on the others. Nothing here loads torch. The tables
are trained by windlass.train.hmm; their files are docs/formats/hmm.md. Start at `model`.
"""

from windlass.models.hmm.model import HiddenMarkov, load

__all__ = ["HiddenMarkov", "load"]
