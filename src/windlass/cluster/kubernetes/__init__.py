"""Processes in a Kubernetes cluster.

    a Group -> manifests -> server-side apply -> read back what was stored -> watch, in plain words

    labels.py      names and labels of everything that we make
    pod.py         one member as a pod: command, limits, places to write, no rights
    training.py    a group that ends: an indexed Job, or a StatefulSet where members shall always run
    serving.py     a service: Deployment, Service, autoscaler, disruption budget
    tenancy.py     what keeps a tenant to itself: namespace, quota, limits, network, rights
    cronjob.py    a CronJob for backups
    render.py      all of it, from one job file
    rules.py       what the API server refuses although the schema allows it; schemas.py: the schemas
    kubeconfig.py  where the API server is and who we are; api.py speaks to it, and is the only one who does
    apply_check.py      what was stored, compared with what was sent
    messages.py       states and events as a person would say them
    kubernetes_backend.py     the protocol of cluster.backend

Start at kubernetes_backend.py, or at render.py.
"""
