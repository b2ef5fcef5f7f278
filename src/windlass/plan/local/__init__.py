"""Runs of our own trainer on this machine: predicted from what `windlass probe` measured.

Start at profile.py.
"""
