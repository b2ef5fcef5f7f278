"""Plans, trains, operates and serves language models on machines that its user owns.

    corpus -> plan -> train -> registry -> serve

A package imports only packages on lower layers (checked by the import contracts in pyproject.toml):

    12  cli
    11  lab         proofs, benchmarks, chaos and simulation; not part of the product
    10  sites
     9  backup
     8  control     supervisor
     7  runs
     6  elastic     registry    sdk
     5  train       serve       cluster
     4  parallel
     3  models      corpus      plan        http    completion
     2  store
     1  spec

Start at docs/paths.md, which follows the data through them.
"""

__version__ = "0.1.0"
