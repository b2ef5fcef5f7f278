"""Injects faults into a run, from a seed, and measures how the run recovers.

    baseline speed of n workers -> baseline run -> the same run with faults -> audit -> report

`harness` does all of it. `schedule` draws the faults. `experiment` injects and heals them while `watch` reads
the run's journal; `process_faults` and `env_faults` are their kinds (`injected_fault`), by way of `disk`,
`clock`, `network` and `storage` (`fault_proxy`). `environment` starts a run where they are possible, `target`
finds its processes. `baseline` measures the speed without faults; `measure`, `compare_runs` and `report`
compute the figures. `cleanup` removes what a killed experiment left behind.

Start at `harness`.
"""
