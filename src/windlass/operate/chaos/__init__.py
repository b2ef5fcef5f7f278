"""Hurts a run on purpose, from a seed, and measures what comes of it.

    speed of n workers, calm -> undisturbed run -> the same run under fire -> audit -> report

schedule.py draws when what is hit. faults.py and surroundings.py hurt and heal, for real, through disk.py,
clock.py, network.py and storage.py. stage.py starts a run where all of that is possible; storm.py lets the
time pass, and watch.py hears what the run says meanwhile. calm.py finds out how fast an undisturbed run is;
measure.py, likeness.py and report.py turn it all into figures. leftovers.py removes what a killed storm left.

Start at harness.py.
"""
