"""What processes say to each other: messages and the conventions of every process that we start.

`entrypoint` is the contract of a process: its arguments, events on standard output, exit codes. `rank` says
which process of a run a process is. `link` carries lines of JSON over TCP; `elastic` has the messages of an
elastic run on it, `server_registry` the addresses of parameter servers. `wire` is spoken by gateway and
engine, `routing` by supervisor and gateways. `control` and `queue` are the bodies of the control API,
`progress` is how long work reports how far it is.
"""
