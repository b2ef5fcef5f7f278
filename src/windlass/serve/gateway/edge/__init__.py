"""The outermost layer of the gateway: what happens to a request before and after its route.

`server` listens and stops in order. `middleware` gives every request an id, checks its origin and its key
(`access`), and observes its answer. `fast_path` takes the busiest routes past the framework.
`exception_handlers` answers requests that no route answers.
"""
