"""Several sites that serve under one name.

`dns` answers with the nearest healthy site, `replication` copies model versions to every site through a
shared store, `rollout` brings a version to one site after the other.
"""
