"""Checkpoints: saved while training continues, restored under any layout.

`manager` is what the trainer uses: it keeps checkpoints in memory on two machines (`peer_memory`), on local
disk and in a store, and has them read back (`verifier`). `async_save` writes one checkpoint in the
background: each rank writes its `shard`, the last one commits the manifest. `reader` puts the shards together
again.
"""
