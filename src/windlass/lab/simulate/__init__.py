"""A fleet that exists only in memory, driven by the code that drives real ones, faster than time.

    arrivals, faults, loads of services -> events -> SimulatedBackend <- Reconciler <- decide (admission)
                                                          |                 |
                                                       Tally            MemoryLedger -> report, picture

The reconcile loop (control.plane), the queue's decision (control.scheduler) and the autoscaler
(supervisor.autoscale) are the real ones; simulated are the machines, what runs on them, and the clock.

scenario.py says what is simulated, workload.py makes jobs and faults of it, fleet.py holds the machines,
sim_job.py what becomes of a job on them, backend.py is the face that the control plane sees, services.py lets
the autoscaler ask for replicas, usage.py counts where the time of the machines goes, and report.py says it.

Start at simulation.py.
"""
