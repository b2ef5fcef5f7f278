"""`windlass prove control` and `windlass bench control`: no job is lost or run twice, and how fast it is.

`control_proof` runs two control processes (`pair`, `proof_process`) under load (`control_client`), kills them
again and again, and counts lost and repeated jobs. `recording_job` is a job that records its start and end.
`control_bench` runs a thousand jobs, from submit to done, on an in-memory cluster (`memory_cluster`).

Start at `control_proof`.
"""
