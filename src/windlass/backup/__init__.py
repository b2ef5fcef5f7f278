"""Backups of a home directory: content-addressed chunks and snapshots in any store.

    `contents`     which files of a home are backed up, and in which order
    `databases`    databases on a server: dumped and loaded under the name of their file
    `encryption`   compression and encryption of stored objects
    `snapshot`     the list of files in a backup
    `repository`   the backup in its store: chunks first, snapshots last
    `locks`        keeps chunks from being pruned while a backup or a restore uses them
    `make`         home -> chunks -> snapshot; `uploader` sends the chunks
    `restore`      snapshot -> chunks -> home; `relocate` adapts paths and loads databases
    `prune`        decides which snapshots are kept, and deletes the others
    `verify`       restores to a scratch directory and compares; `smoke_test` queries a restored model
    `schedule`     make and prune at intervals

The format is docs/formats/backup.md. Start at `make`. `lab.proofs.restore_proof` tests it end to end.
"""
