"""Who is let in, how much at a time, and what happens when too much is asked for.

    gate.py       Gate.admit: brown-out, then time, then limits; Grant.settle gives back what was not used
    book.py       which limits apply to a caller
    treasury.py   the parts of shared budgets that this gateway holds, renewed ahead of need in a thread
    purse.py      one such part: spent here without asking anybody, worth nothing once its time is over
    estimate.py   how long a request would take, learned from those that were answered
    line.py       what is under way at one version, and how quickly it goes
    brown_out.py  how much less is done, by pressure
    refusals.py   what a refused caller is told, and when to ask again

The budgets themselves are windlass.serve.records.bucket (rules) and .quotas (tables). Start at gate.py.
"""
