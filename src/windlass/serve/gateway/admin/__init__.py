"""The service's records over HTTP, for keys with the scope admin.

    keys.py      tenants.py    rollouts.py      change records; each change is in the audit log
    audit.py     limits.py     replicas.py      show what was done, what is left, and what answers
    control.py                                  passes on what the control process knows: runs, models, plans
    shared.py    what the routes share: the state, who acts, errors in the API's codes
    requests.py  replies.py                     bodies and answers

Records are those of windlass.serve.records, which the command line changes too. Start at keys.py.
"""
