"""Keeps what runs equal to what was asked for, and what was made where it can be found.

    registry.py     models by name@version: immutable, with lineage and aliases
    runs.py         training runs: prepared, started, followed, resumed
    elastic_run.py  runs whose workers come and go; coordinator.py is the process that keeps them together:
                    leading.py hears (reception.py), decides (membership.py, on roll.py) and acts (forming.py)
    changes.py      what a run may be asked while it goes on; control_api.py offers it over HTTP, with the
                    registry (control_models.py) and plans (control_plans.py, made by planner.py)
    audit.py        proves that every sample was used once; goodput.py, incidents.py tell how a run went
    chaos/          hurts a run on purpose, and says what became of it
    serving/        a service: engines and gateways, started, watched, replaced; deciders.py says who decides:
                    health/ who is well, rollout/ which version answers, autoscale/ how many replicas
    sites/          several sites behind one name: a DNS server that answers with the nearest one that is well
    backup/         copies of a home in a store, from which everything comes back
    failover/       rollback/, lending/: proofs of a service (streams, versions, limits); bench/: its speed

Start at runs.py.
"""
