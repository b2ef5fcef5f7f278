"""Brings a new version of a model to its clients, and takes it back by itself if it is worse.

    load -> gate (our own questions) -> shadow -> a growing part of the requests -> promoted
                      any moment: rolled back, with a report; no client sees a difference

sequential_test.py is the statistics; criteria.py and judge.py turn answers into a verdict; stages.py says
what comes next, in pure functions; controller.py does it in the supervisor, a step at a time.

Start at stages.py.
"""
