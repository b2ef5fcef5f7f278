"""What may be asked for, without doing any of it.

    job.toml -> read.py -> Job (job.py) -> Shape (shape.py) -> messages between processes (wire.py)

errors.py is the one tree of errors, units.py reads "80GiB" and "3d", schema.py turns the job's models
into a JSON Schema for editors and into the commented file that `windlass init` writes.

Start at job.py.
"""
