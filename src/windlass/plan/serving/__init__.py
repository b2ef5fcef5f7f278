"""How many replicas of which layout serve some traffic in time.

`times` predicts latencies, with the `fitted_constants` of each engine; `search` finds the cheapest layout
that meets the targets. Start at `times`.
"""
