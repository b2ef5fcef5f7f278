"""`windlass prove`: guarantees of the product, proved on real processes that are killed, frozen or cut off.

Packages: `layouts` (every layout learns the same), `failover` (streams survive their engine), `rollback` (bad
versions are rolled back), `quota` (limits hold across gateways), `control` (no job is lost or run twice),
`tenants` (a hostile tenant), `sites` (clients reach another site), `backends` (one job file everywhere),
`servers` (parameter servers lose no update). Modules: `families_proof` (families compute what transformers
computes), `launch_proof` (a killed rank ends a run cleanly),
`saves_proof` (a save may die at any byte), `restore_proof` (a backup brings everything back),
`replication_proof` (replication loses no version), `gguf_proof` (imported models answer as llama.cpp does, on
files that `package_cache` fetches).
"""
