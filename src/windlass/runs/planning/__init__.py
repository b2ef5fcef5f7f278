"""Processes that the planner needs: `probe` measures this machine, `pilot` trains small models first, `sweep`
plans every option for a corpus (its workers are `sweep_workers`).
"""
