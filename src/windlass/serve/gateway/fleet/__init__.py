"""Many engines behind one face: which replica answers, and who goes on when it cannot.

    service.ask -> fleet.ask -> routing (which replica) -> link (the wire) -> engine
    engine -> link -> fleet (progress, failures) -> ticket -> the route that waits

A task keeps the prompt, the tokens that were sent and the seed, and so can go on at any replica, from the
character at which another ended. routing.py and retry_budget.py decide, in pure functions; engine_link.py
talks to one replica; supervisor_client.py to the supervisor.

Start at fleet.py.
"""
