"""Fits the constants of cost/ to published measurements, and judges them on sources left out of the fit.

Start at published.py.
"""
