"""What gateways, supervisor and commands agree on, in one database.

    state.py        opens it with all its tables; every other module owns some of them
    keys.py         who may use the service          tenants.py     whom it works for
    audit_log.py        who did what, sealed             audit_verify.py is it still as it was written?
    quotas.py       what is left to each             bucket.py      the rules of that, pure
    idempotency_store.py      of requests that come twice      redaction.py   texts without personal data
    rollouts.py     versions on their way            golden_answers.py       what versions are known to answer
    record_cache.py   what is looked up at every request, kept for as long as nothing changed

Start at state.py, then keys.py.
"""
