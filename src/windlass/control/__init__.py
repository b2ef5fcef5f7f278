"""The control plane of a cluster: the HTTP API, the job queue, the scheduler, and tenants.

`api` receives requests; `plane` stores the submitted jobs and reconciles the cluster with them; `scheduler`
decides which jobs run; `tenants` isolates tenants from each other.
"""
