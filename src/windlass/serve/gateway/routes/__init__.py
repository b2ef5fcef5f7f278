"""One module for each route that computes, and what they share.

`pipeline` is the order of every such route: read, check, compute, answer. `completions` and `chat` share
`generation`; `embeddings`, `tokens`, `dry_run` and `complete_call` are the others. `error_pages` explains the
error codes.
"""
