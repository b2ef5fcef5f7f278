"""Constrained decoding: answers that follow a JSON schema, a regular expression or a choice.

`compile_grammar` builds an automaton over the model's tokens; `token_mask` says at each step which tokens may
come next. A new grammar is tried first in a separate process (`trial`, `trial_worker`), so that a harmful one
cannot stop the engine.
"""
