"""Processes that the planner needs.

`probe` measures this machine, `pilot` trains small models to predict the loss of a large one, `sweep` plans
every option for a corpus on Beam (`sweep_workers` runs in its workers).
"""
