"""Supervision of one process on one machine: restarts, resource limits, isolation, identity.

`process_supervisor` starts a member of a group, watches it and restarts it as `restarts` decides.
`cgroup_limits` bounds cores and memory; `sandbox` starts a tenant's process so that it cannot reach another
tenant's data (`sandbox_exec` applies the limits before the command runs). `process_identity` tells a process
from a later one with the same id; `disk_usage` counts what a tenant stores.
"""
