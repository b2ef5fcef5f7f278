"""Shows that a control plane loses no job and runs none twice, and how quick it is.

    proof.py    two control processes (process.py, pair.py) under load, killed again and again -> lost? twice?
    witness.py  a job that writes down its begin and its end
    bench.py    a thousand jobs, from submit to done, on machines that are a table (table.py)

Start at proof.py.
"""
