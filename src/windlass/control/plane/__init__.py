"""The control plane: keeps what runs on a cluster equal to what its users have asked for.

    Records (what is wanted) + Backend.survey (what is there) -> became, decide -> Records -> launch, stop

queued_job.py is one job of the queue, job_store.py the tables (docs/formats/control-state.md) and
leader_lease.py who may write into them; reconcile.py is the loop. observe.py and actions.py are pure: what a
job comes to by what is seen, and what is to be done about it. Whoever dies in the midst of a step leaves
nothing half done that the next step, by anybody, does not do: intents are written before deeds, and deeds can
be repeated.

Start at reconcile.py.
"""
