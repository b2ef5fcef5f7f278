"""`windlass prove server`: parameter servers lose no update when workers and servers are killed.

`server_cases` lists the runs; `servers_proof` makes them and audits what they wrote.
"""
