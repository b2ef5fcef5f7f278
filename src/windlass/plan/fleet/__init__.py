"""Finds layouts for work on a fleet, explains the choice, or says what is in the way.

Start at answer.py.
"""
