"""Bytes, wherever they live: one door to fsspec, and the promises that make directories trustworthy.

    store_dir.py      a directory at any URL: read, write whole files, list; on_oss.py and on_webhdfs.py where a
                  library does not keep its promises
    manifest.py   tells a finished directory from debris
    mirror.py     copies of finished directories, each file once; uploads.py sends them in the background
    checkpoint_retention.py  which checkpoints stay
    journal.py    append-only lines that survive a torn write
    database.py   one door to SQL: what sql.py promises, by on_sqlite.py or on_postgres.py;
                  db_backup.py copies one that is in use
    beam.py       who runs a pipeline of Apache Beam, whose results lie in places
    lock.py       one writer at a time, or many users, until their processes end

Start at store_dir.py, then manifest.py.
"""
