"""Proves that limits hold across gateways: many processes take from the same budgets as fast as they can.

    quota_proof.py    starts them, kills one and freezes another, and holds what they took against the limits
    load_worker.py   one of them: a gateway's own treasury, and requests that are never content

Start at quota_proof.py.
"""
