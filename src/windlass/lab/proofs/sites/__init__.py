"""`windlass prove sites`: clients reach another site when theirs is cut off.

`sites_proof` builds two sites, a resolver and clients in network namespaces. `probe_client` is a client that
resolves a name, `sdk_probe_client` one that uses the SDK with the addresses of all sites.
"""
