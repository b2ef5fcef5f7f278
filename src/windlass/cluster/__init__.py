"""Where processes run: the ranks of one run, and groups of processes on a cluster.

`launch` starts the ranks of a run on this and other machines and brings them to one end.

`backend` is the interface of every cluster: launch, observe, scale and stop groups of processes that outlive
their launcher. `local` (this machine), `on_ray` (a Ray cluster) and `kubernetes` (pods) implement it;
`backends` finds the one that a job names. `process` supervises one member of a group on its machine:
restarts, resource limits, isolation of tenants. `training_group` makes the group that trains a job, for any
backend.

A process is started by its module and arguments, writes events to its standard output
(spec.protocol.entrypoint), and is stopped by SIGTERM, then by SIGKILL.

Start at `launch.launcher` for one run, at `backend` for clusters.
"""
