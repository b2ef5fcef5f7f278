"""Brings the models of a home to every site, through a store that all of them reach.

    home's registry -> publish.py -> artifact_store.py -> puller.py -> a site's registry
                                        ^-- sites report what they have; lag.py compares (pure)

Nobody reaches into anybody's machine: the home puts versions into the depot, each site takes them out and
checks them by itself. So a site that was cut off needs nobody's help to catch up. replication_set.py says
which versions come and which may go (pure); watch.py does it again and again; lab/proofs/replication_proof.py
kills and cuts.

The format is docs/formats/sites.md. Start at artifact_store.py.
"""
