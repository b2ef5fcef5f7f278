"""As many replicas as the load needs, and as the machine can bear.

    what gateways tell (demand, outcomes) -> signals.py -> decide.py (pure) -> Wanted -> the supervisor
                                   capacity.py: what cores and memory allow -> a bound

decide.py is the policy: it grows at once and shrinks after calm. autoscaler.py is the decider that the
supervisor asks. The policy is tried on load in tests/supervisor/autoscale/load, in a simulator where replicas
take their time to start.

Start at decide.py.
"""
