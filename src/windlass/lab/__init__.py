"""Proofs, benches, chaos experiments and simulations. Nothing but the command line imports this package.

`proofs` show on real processes that a promise holds. `bench` measures serving, `torch` measures training;
`chaos` injects faults into a run; `simulate` runs the control plane on a simulated fleet; `planner` compares
predictions of the planner with measurements.
"""
