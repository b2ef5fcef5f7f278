"""Keeps tenants apart: what their jobs may name, where their data lies, what their processes are held to.

    job text -> rules.confined (nothing names what is another's) -> ground.Ground (paths and URLs stay below
    the tenant's own) -> lodging.Lodging (home, user id, limits) -> cluster.backend.Isolation of its groups

What a tenant is allowed is kept in serve.records.tenants; cluster.process.sandbox and
cluster.process.cgroup_limits hold processes to it.

Start at tenant_registry.py.
"""
