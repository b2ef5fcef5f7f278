"""`python -m windlass.cli`: the same as `windlass`."""

from windlass.cli.main import run

run()
