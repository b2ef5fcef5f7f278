"""Keeps copies of a home in a store, from which everything comes back.

    contents.py   what of a home is kept, and in which order it is read
    databases.py  those that may be on a server, and how they come back
    encryption.py    how bytes are packed, and sealed where a secret is given
    snapshot.py   what one backup holds, as data
    repository.py      the backup in its store: chunks by content, snapshots last
    locks.py     who is at work there, so that nothing goes away under anybody
    make.py       home -> chunks -> snapshot        uploader.py is its way to the store
    restore.py    snapshot -> chunks -> home        relocate.py puts it right in its new place
    retention.py    which snapshots stay (pure); prune.py forgets the others
    verify.py     a restore into a scratch place, compared and asked (smoke_test.py)
    schedule.py   make and prune, again and again
    lab/proofs/restore_proof.py      everything is lost, and comes back

The format is docs/formats/backup.md. Start at make.py.
"""
