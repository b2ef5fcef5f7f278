"""Kubernetes as a cluster backend.

    a Group -> manifests -> server-side apply -> compare what was stored -> watch

Manifests: `labels` (names and labels of all our objects), `pod` (one member as a pod), `training` (an indexed
Job, or a StatefulSet if members must always run), `serving` (Deployment, Service, autoscaler, disruption
budget), `tenancy` (namespace, quota, limits, network policies, rights of a tenant), `cronjob` (backups).
`render` makes all of them from one job file; `schemas` and `rules` check them without a cluster; `yaml_io`
writes and reads them.

Access: `kubeconfig` finds the API server and our credentials; `api` is the only module that calls it.
`apply_check` compares what the server stored with what was sent. `members` reads the state of pods,
`messages` turns states and events into sentences, `follow` streams events and logs of a group.

`kubernetes_backend` implements cluster.backend. Start there, or at `render`.
"""
