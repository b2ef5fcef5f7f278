"""A plan as one HTML file with pictures, which opens offline.

Start at page.py.
"""
