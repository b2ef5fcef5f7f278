"""Hidden Markov models: a state that nobody sees emits each token, and chooses the state after it."""
