"""Starts the ranks of a run and waits for their end, on one or several machines.

`launcher` runs all ranks. `local_ranks` starts the ranks of this machine: `local_process` is one child
process, `cores` divides the cores, `rank_log` merges the logs. `remote_ranks` starts the ranks of other
machines; `rendezvous` connects the launchers. `exit_status` decides the outcome, and which rank failed first.
"""
