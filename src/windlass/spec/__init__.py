"""What may be asked for, without doing any of it.

    job.toml -> read.py -> Job (job.py) -> Shape (shape.py) -> messages between processes
    (spec/protocol/wire.py)

run.py is a job in which nothing is left open, config.py reads and writes Hugging Face's config.json,
spec/protocol/entrypoint.py is what every process that we start promises, spec/protocol/progress.py how it
says how far it has come; spec/protocol/elastic.py has the messages of an elastic run, spec/protocol/link.py
carries them; spec/protocol/control.py has the bodies of the control API. errors.py is the one tree of errors,
units.py reads "80GiB" and "3d", schema.py turns the job's models into a JSON Schema for editors and into the
commented file that `windlass init` writes. calls/ reads half-typed calls of the API and of the command line,
and offers what could come next.

Start at job.py.
"""
