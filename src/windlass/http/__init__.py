"""What all HTTP servers of Windlass share: limits, headers, errors, streaming, TLS.

    socket -> `listener` -> `transport` -> `headers`, `origins`, `deadlines`, `json_body` -> a route ->
    `streaming`

`listener` binds addresses and configures uvicorn; `tls` checks certificates before that. `transport` reads
HTTP/1.1 with limits on size and time, `write_coalescing` joins small writes. `headers`, `origins`,
`deadlines` and `json_body` read and check requests. `bearer` makes and reads the keys of our APIs,
`token_bucket` bounds a rate. `errors` is the table of error codes and builds their bodies, `error_reply`
sends them and has their model for the OpenAPI document, which `openapi` writes. `streaming` sends
server-sent events, `static_files` serves the web page.
"""
