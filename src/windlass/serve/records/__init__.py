"""What gateways, supervisor and commands agree on, in one database.

    state.py        opens it with all its tables; every other module owns some of them
    keys.py         who may use the service          tenants.py     whom it works for
    chain.py        who did what, sealed             chain_check.py is it still as it was written?
    quotas.py       what is left to each             bucket.py      the rules of that, pure
    answers.py      of requests that come twice      redaction.py   texts without personal data
    rollouts.py     versions on their way            known.py       what versions are known to answer
    remembered.py   what is looked up at every request, kept for as long as nothing changed

Start at state.py, then keys.py.
"""
