"""Brings a version from site to site: the canary first, each by its own roll-out, and back where it fails.

    waiting (for its copy) -> ready -> [draining] -> asking -> rolling -> settling -> done
                                  a site that fails: undoing -> undone, or failed where it took itself back

rollout_record.py is what is known, kept in the depot after every step, so that whoever comes after a crash
goes on; turns.py says whose turn it is (pure); site_client.py is one site, by its admin API; driver.py takes
the steps; start.py begins, resumes and refuses.

Start at rollout_record.py.
"""
