"""The routes that compute, one module each, and what they share.

`pipeline` has the steps of every route that uses the engine: read, check, compute, answer. `completions` and
`chat` share `generation`, which takes a request for text from its endpoint to the reply; `embeddings`,
`tokens`, `dry_run` and `complete_call` are the other routes. `error_pages` explains the error codes.
"""
