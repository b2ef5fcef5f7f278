"""Compresses models for serving, and measures the loss.

`compress` is the process that rounds or quantises a model directory; `calibrate` measures the inputs of its
matrices for it. `perplexity` scores held-out text with a model as it is served.
"""
