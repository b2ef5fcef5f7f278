"""Proves that a bad version is taken back by itself, under traffic, and that a good one is promoted.

    versions.py (two trained models, five spoilt ones) -> traffic.py (clients that never stop)
        -> proof.py (roll out each, and count)

Start at proof.py.
"""
