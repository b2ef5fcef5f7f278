"""Several sites that serve under one name.

`dns` answers queries with the nearest healthy site, `replication` copies model versions to every site through
a shared store, `rollout` makes the sites serve a version, one after the other.
"""
