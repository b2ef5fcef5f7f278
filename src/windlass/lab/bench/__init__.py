"""Measures how fast this machine serves, beside peers, and whether an engine lasts.

    subjects -> our engine and every peer, in turn, the same task -> rates and delays -> figures

serve.py is `windlass bench serve`: contenders.py starts who takes part, task.py says what they are asked
and what came of it, limits.py holds our engine against the machine. soak.py is `windlass bench soak`, on
the requests of traffic.py. overload.py is `windlass bench overload`, with the clients of overload_client.py.
engine_process.py is the engine's wire, held by one thread.

Start at serve.py.
"""
