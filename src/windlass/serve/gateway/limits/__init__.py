"""Who is let in, how much at a time, and what happens when too much is asked for.

    admission_controller.py       Gate.admit: brown-out, then time, then limits; Grant.settle gives back what was not used
    limit_rules.py       which limits apply to a caller
    quota_client.py   the parts of shared budgets that this gateway holds, renewed ahead of need in a thread
    quota_lease.py      one such part: spent here without asking anybody, worth nothing once its time is over
    estimate.py   how long a request would take, learned from those that were answered
    backlog.py       what is under way at one version, and how quickly it goes
    brown_out.py  how much less is done, by pressure
    limit_errors.py   what a refused caller is told, and when to ask again

The budgets themselves are windlass.serve.records.bucket (rules) and .quotas (tables). Start at
admission_controller.py.
"""
