"""The reconcile loop of the control plane: makes what runs on a cluster match the submitted jobs.

    JobStore (desired) + ClusterBackend.survey (observed) -> diff: next_phase, decide -> write -> launch, stop

`job_to_group` checks a submission and translates it into a group of processes. `queued_job` is one job of the
queue, `tables` and `job_store` are the database (docs/formats/control-state.md). `leader_lease` elects the
one control plane that acts; `leader_store` is its access to the tables, `job_cache` its copy in memory.
`reconcile` is the loop; `observe` (the next phase of a job) and `actions` (what to do at the backend) are
pure. `control_plane` runs it all in threads.

A process that crashes in the middle of a step leaves nothing that the next leader does not finish: phases are
written before actions, and actions can be repeated. Start at `reconcile`.
"""
