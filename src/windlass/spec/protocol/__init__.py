"""Messages between processes, and the conventions that every Windlass process follows.

`entrypoint` is the contract of a process: its arguments, events on standard output, exit codes; `rank` adds
the arguments of one process of a distributed run, `progress` is how long-running work reports how far it is,
`backoff` how long a process waits between attempts. `link` carries lines of JSON over TCP; `elastic` has the
messages of an elastic run, which a link carries. `server_registry` has the addresses of parameter servers.
`wire` is the protocol between gateway and engine, `routing` that between supervisor and gateways. `control`
and `queue` are the bodies of the control API.
"""
