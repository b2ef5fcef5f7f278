"""A plan as one HTML file with pictures, which opens offline.

`page` builds the page, `plots` its pictures, `drawing` their SVG elements. Start at `page`.
"""
