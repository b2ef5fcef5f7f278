"""Replicates the models of a home to every site, through a store that all of them reach (the depot).

    home's registry -> `publish` -> `artifact_store` -> `puller` -> a site's registry
                                          ^-- sites report what they have; `lag` compares (pure)

No machine writes to another: the home puts versions into the depot, and each site pulls and checks them. So a
site that was disconnected catches up by itself. `replication_set` decides which versions are replicated and
which are deleted (pure); `watch` repeats either side at intervals.

The format is docs/formats/sites.md. Start at `artifact_store`. `lab.proofs.replication_proof` tests it with
killed processes and cut connections.
"""
