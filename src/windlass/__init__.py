"""Plans, trains, operates and serves language models on machines that its user owns.

    corpus -> plan -> train -> registry -> serve

Twelve rooms on seven floors; a room imports only rooms on lower floors:

    7  cli
    6  operate   sdk
    5  train     serve     cluster
    4  parallel
    3  models    corpus    plan
    2  store
    1  spec

Start at docs/paths.md, which follows the data through them.
"""

__version__ = "0.1.0"
