"""Who may run now: queue, priorities, quotas, fair share, gangs and preemption, as a pure decision.

    View (nodes, what waits, what is placed, shares of tenants) -> decide -> Decisions

Nothing here knows a database, a clock or a backend: the control plane and the simulator of large fleets
call the same code.
"""
