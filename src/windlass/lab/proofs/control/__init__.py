"""Shows that a control plane loses no job and runs none twice, and how quick it is.

    control_proof.py    two control processes (proof_process.py, pair.py) under load, killed again and again -> lost? twice?
    recording_job.py  a job that writes down its begin and its end
    control_bench.py    a thousand jobs, from submit to done, on machines that are a table (memory_cluster.py)

Start at control_proof.py.
"""
