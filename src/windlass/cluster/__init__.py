"""Where processes run.

    on_local.py   this machine: launch, observe, stop

A process is asked for by its module and arguments, tells events on its standard output (spec.door), and
is stopped by SIGTERM, then by SIGKILL.

Start at on_local.py.
"""
