"""Data types that all packages share: configuration, plans, errors and messages. Nothing here does any work.

    job.toml -> `read` -> Job (`job`) -> planner -> Run (`run`) -> trainer

`job` is the whole job file; its tables are in `layout` (how a model is divided among processes), `sync` (how
replicas agree), `cluster` (where processes run) and `serve`, which includes `limits`, `scale`, `rollout` and
`privacy`. `config_model` is the base class of every table, `units` reads "80GiB" and "3d", `schema` writes
the JSON Schema for editors and the commented file of `windlass init`, which `read` also writes back as TOML.
Other files that users write: `fleet` (machines to plan for), `sites`, `backup` and `tenancy` (quotas).

`run` is a job in which the planner has decided everything; `settings` is what may change while it runs.
`shape` has the sizes of a model, its weights and FLOPs; the package `model` has the features of every decoder
family and their config.json, which `config` reads and writes, and `native_config` that of our own families.
`home` finds the user's directory, `errors` is the tree of errors, `processes` lists every process entry
point, and `protocol` has the messages between processes.

Start at `job`.
"""
