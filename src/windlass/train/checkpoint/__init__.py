"""Checkpoints: saved while training continues, restored under any layout.

`checkpointer` is what the trainer uses: it keeps checkpoints on local disk and in a store, and has them read
back (`verifier`); `peer_memory` keeps the newest state in memory on two machines. `async_save` writes one
checkpoint in the background: each rank writes its `shard`, and rank 0 commits the manifest. `reader`
assembles the shards.
"""
