"""Simulates a fleet in memory, driven by the real control plane, faster than real time.

    arrivals, faults, loads of services -> events -> SimulatedBackend <- Reconciler <- decide (admission)
                                                          |                 |
                                                       UsageIntegrals      MemoryLedger -> report, plot

The reconcile loop (control.plane), the scheduler (control.scheduler) and the autoscaler
(supervisor.autoscale) are the real ones; the nodes, the jobs and the clock are simulated.

`simulation` runs the loop. `scenario` reads what is simulated, `workload` draws jobs and faults, `fleet`
holds the nodes, `sim_job` the progress of a job, `events` the clock. `backend` is the cluster backend that
the control plane sees, `memory_store` its job tables. `services` lets the autoscaler request replicas.
`usage` integrates how the nodes' time is spent, `samples` samples the fleet, `report` computes the figures
and `plot` draws them.

Start at `simulation`.
"""
