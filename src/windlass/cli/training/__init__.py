"""Commands about data and training: `up`, `init`, `corpus`, `train`, `jobs`, `eval`, `generate` and `tag`.

`jobs` has `jobs_submit`, `jobs_change`, `jobs_control`, `jobs_logs`, `jobs_audit` and `jobs_verify`.
`workers` has the options for processes and nodes, `train_on_kubernetes` launches a run on a cluster,
`hyperparameter_table` prints the settings that a run uses.
"""
