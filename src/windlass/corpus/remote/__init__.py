"""A corpus on a store: published once, read by every machine through a local cache.

`published` writes and opens a corpus on a store. `remote_part` reads one part of it: tokens come through
`cache`, which downloads shards into a directory that the processes of a machine share (`disk_cache`), evicts
by one of four policies (`eviction`) and downloads shards before they are needed (`prefetch`).
"""
