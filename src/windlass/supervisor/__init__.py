"""Keeps engines and gateways running, as many and of such versions as are wanted.

    observe (processes, gateways' reports) -> decide (health, roll-out, autoscale: view.Decider)
        -> reconcile (pure: wanted x running -> start, drain, stop) -> act -> tell the gateways

desired.py says what should run, state.py what does; supervisor.py is the loop. control_child.py keeps the
control process, which the service can do without.

Start at supervisor.py.
"""
