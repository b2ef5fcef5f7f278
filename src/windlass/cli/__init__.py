"""The command line: one module per verb. No verb loads torch.

`main` lists the verbs, imports the module of the requested one and turns errors into sentences and exit
codes. `training`, `planning`, `serving`, `operations`, `lab` and `complete` have the verbs. `home` and
`job_argument` are arguments that many verbs share, `terminal` prints tables and JSON, `verb_cache` caches the
description of the verbs for shell completion.

Each verb module has `configure(parser)`, which declares its arguments and sets `run`.

Start at `main`.
"""
