"""What every HTTP server of ours shares: limits, headers, errors, streaming, TLS.

`transport` speaks HTTP/1.1 with bounds on size and time (`write_coalescing` joins small writes); `listener`
binds addresses and configures uvicorn; `tls` checks certificates before anything listens. `headers`,
`origins`, `deadlines` and `json_body` read requests. `errors` is the table of error codes and their envelope;
`streaming` sends server-sent events; `response_scope` follows a response until it has ended. `openapi` writes
the OpenAPI document, `static_files` serves pages.
"""
