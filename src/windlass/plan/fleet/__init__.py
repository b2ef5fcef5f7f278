"""Finds layouts for work on a fleet, explains the choice, or says what is in the way.

request.py reads what is asked for; choices.py lists what can be. Start at answer.py.
"""
