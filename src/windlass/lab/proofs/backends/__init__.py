"""`windlass prove backends`: one job file on this machine, on Ray and on Kubernetes.

`backends_proof` runs the job on this machine and on a Ray cluster that loses a node (`ray_nodes` starts it),
and renders it for Kubernetes.
"""
