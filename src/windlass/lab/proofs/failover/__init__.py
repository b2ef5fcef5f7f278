"""`windlass prove failover`: streams survive the failure of engines.

    a service of several replicas -> clients that send requests all the time -> faults at random times in
    mid-stream -> every answer compared with the answer without faults, byte by byte

`failover_proof` does it. `requests` has the clients' requests, `stream_reader` reads the answers,
`engine_faults` injects faults into engines.

Start at `failover_proof`.
"""
