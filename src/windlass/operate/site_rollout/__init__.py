"""Brings a version from site to site: the canary first, each by its own roll-out, and back where it fails.

    waiting (for its copy) -> ready -> [draining] -> asking -> rolling -> settling -> done
                                  a site that fails: undoing -> undone, or failed where it took itself back

record.py is what is known, kept in the depot after every step, so that whoever comes after a crash goes on;
course.py says whose turn it is (pure); door.py is one site, by its admin API; journey.py takes the steps;
opening.py begins, resumes and refuses.

Start at record.py.
"""
