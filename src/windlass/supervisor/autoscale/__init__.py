"""Autoscaling: as many replicas as the load needs and the machine has room for.

    gateways' reports (demand, outcomes) -> `signals` -> `decide` (pure) -> the desired state
                        `capacity`: how many replicas fit by cores and memory -> an upper bound

`decide` is the policy: it grows at once and shrinks after a calm time. `autoscaler` is the controller that
the supervisor calls. Tests run the policy on load curves (tests/supervisor/autoscale/load) in a simulator
whose replicas take time to start.

Start at `decide`.
"""
