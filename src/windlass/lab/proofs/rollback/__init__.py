"""`windlass prove rollback`: under traffic, bad versions are rolled back and good ones are promoted.

`versions` makes two trained models and five bad ones (`bad_versions`), `client_traffic` sends requests all
the time, `rollback_proof` rolls out each version and counts the outcomes.

Start at `rollback_proof`.
"""
