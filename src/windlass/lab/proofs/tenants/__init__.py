"""`windlass prove tenants`: a hostile tenant sees nothing of another, and slows it no more than its share.

`tenants_proof` compares a victim alone and under attack. `tenant_process` is the attacked control plane,
`hostile_client` attacks it from outside and `hostile_job` from inside; `shared_service` attacks a service.

Start at `tenants_proof`.
"""
