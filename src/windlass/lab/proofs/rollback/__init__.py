"""Proves that a bad version is taken back by itself, under traffic, and that a good one is promoted.

    versions.py (two trained models, five spoilt ones) -> client_traffic.py (clients that never stop)
        -> rollback_proof.py (roll out each, and count)

Start at rollback_proof.py.
"""
