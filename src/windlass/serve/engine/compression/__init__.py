"""Makes models smaller for serving, and measures what that costs.

`compress` is the process that quantises or prunes a model directory; `calibrate` measures activations for it.
`perplexity` measures a model as it is served.
"""
