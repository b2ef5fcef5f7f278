"""Asks every replica questions whose answers are known, and says which are unwell.

    questions (a pure function of the vocabulary) -> prober (a thread for each replica) -> grade
        -> verdict (n of m, with hysteresis) -> unwell, well again, or replaced

Start at monitor.py.
"""
