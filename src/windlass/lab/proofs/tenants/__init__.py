"""Proves that a hostile tenant neither sees another nor slows it beyond its share: `windlass prove tenants`.

tenants_proof.py compares; tenant_process.py is the control plane that is attacked, hostile_client.py attacks
it from outside and hostile_job.py from inside, shared_service.py does both to a service.

Start at tenants_proof.py.
"""
