"""Hidden Markov models: a state that nobody sees emits each token and chooses the state after it.

    a directory -> weights.py: three tables of probabilities -> model.py: states in, log-probabilities out
    tokens -> viterbi.py: the likeliest states behind them

Nothing here loads torch. How the tables are learned is windlass.train.hmm; their files are
docs/formats/hmm.md. Start at model.py.
"""

from windlass.models.hmm.model import HiddenMarkov, load

__all__ = ["HiddenMarkov", "load"]
