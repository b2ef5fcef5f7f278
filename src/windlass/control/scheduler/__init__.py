"""The job scheduler: priorities, quotas, fair share, gang scheduling and preemption, as a pure function.

    Snapshot (nodes, pending jobs, running jobs, tenants' quotas) -> decide -> JobDecisions

`snapshot` has the input and output types. `decide` is the scheduling cycle in six phases: heads, snapshot,
nominate, order, admit, requeue. It uses `capacity` (free capacity per node, placement of gangs), `fair_share`
(weighted dominant shares and quotas of tenants), `preemption` (which running jobs make way) and `reasons`
(texts for the owners of jobs).

Nothing here knows a database, a clock or a backend: the control plane and the fleet simulator call the same
code. Start at `decide`.
"""
