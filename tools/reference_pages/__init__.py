"""Writes docs/reference: what the code says about itself, as pages for people.

    argparse, pydantic, OpenAPI, codes.toml, the boards of figures -> Markdown

verbs.py, job_file.py, api.py, errors.py and metrics.py each make a page; markdown.py has tables and anchors.
A page depends on the code alone: not on this machine, its terminal or the version of Python.

Start at pages.py.
"""
