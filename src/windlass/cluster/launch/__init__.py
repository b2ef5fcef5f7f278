"""Starts the ranks of a run and waits for their end, on one or several machines.

`launcher` runs all ranks; `local_ranks` are those of this machine (`local_process` is one child process,
`cores` divides the cores, `rank_log` merges logs), `remote_ranks` those of others. `rendezvous` is where
launchers of several machines meet. `exit_status` explains how ranks ended.
"""
