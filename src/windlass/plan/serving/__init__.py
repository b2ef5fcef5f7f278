"""Says how many replicas of which layout answer some traffic in time.

Start at times.py.
"""
