"""Hurts a run on purpose, from a seed, and measures what comes of it.

    speed of n workers, calm -> undisturbed run -> the same run under fire -> audit -> report

schedule.py draws when what is hit. process_faults.py and env_faults.py hurt and heal, for real, through
disk.py, clock.py, network.py and storage.py. environment.py starts a run where all of that is possible;
experiment.py lets the time pass, and watch.py hears what the run says meanwhile. baseline.py finds out how
fast an undisturbed run is; measure.py, compare_runs.py and report.py turn it all into figures. cleanup.py
removes what a killed storm left.

Start at harness.py.
"""
