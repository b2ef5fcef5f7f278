"""The control plane: the HTTP API, the job queue and its scheduler, and tenants.

`api` receives requests; `plane` keeps what runs on a cluster equal to what was submitted; `scheduler` decides
which jobs run; `tenants` isolates them from each other.
"""
