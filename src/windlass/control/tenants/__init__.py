"""Tenant isolation: what a tenant's jobs may name, where its data lies, and the limits of its processes.

    job text -> policy.restrict_job -> TenantContext (home, user id, limits) -> cluster.backend.Isolation

`policy` has a rule for every text in a job file; `tenant_paths` checks that paths and URLs stay below the
tenant's own. `tenant_registry` has the tenants of an installation: home, user id, quota, secrets.
`impersonate` reads a tenant's files with that tenant's rights; `rate_limiter` bounds its requests.

Allowances are recorded in serve.records.tenants; cluster.process.sandbox and cluster.process.cgroup_limits
enforce them. Start at `tenant_registry`.
"""
