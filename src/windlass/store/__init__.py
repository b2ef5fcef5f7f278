"""Files and databases, local or remote, with atomic writes.

    bytes -> `store_dir` (any fsspec URL) -> `manifest` (a complete directory) -> `mirror` (copies in a store)

`store_dir` is the only user of fsspec: read, write whole files, list; `on_oss` and `on_webhdfs` replace
client libraries whose writes are not atomic. `manifest` tells a complete directory from an unfinished one.
`mirror` keeps copies of complete directories, each file once; `uploads` sends them in the background, in a
thread of low priority (`thread_priority`), and `checkpoint_retention` decides which checkpoints to keep.

`journal` is an append-only log that survives a torn write, `settings_file` the file of requests to a run.
`lock` is a file lock that ends with its process; `lease` elects a leader through a store alone. `database`
opens a SQL database: `sql` is the interface, `on_sqlite` and `on_postgres` implement it, `db_backup` copies
one that is in use. `beam` runs Apache Beam pipelines.

Start at `store_dir`, then `manifest`.
"""
