"""The outermost layer of the gateway: what happens to a request before and after its route.

`server` listens, reports readiness to its parent and drains on shutdown. `middleware` gives every request an
id, checks its origin and its key (`access`), and records its response. `fast_path` dispatches the busiest
routes without FastAPI's overhead. `exception_handlers` turn every exception into the error envelope.
"""
