"""This machine as a cluster backend.

`local_backend` launches groups; `local_group_daemon` keeps one group running after its launcher has ended;
`local_scheduler` assigns cores and GPUs; `local_state` has the files about groups
(docs/formats/local-groups.md).
"""
