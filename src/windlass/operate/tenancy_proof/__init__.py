"""Proves that a hostile tenant neither sees another nor slows it beyond its share: `windlass prove tenants`.

proof.py compares; process.py is the control plane that is attacked, assault.py attacks it from outside and
guest.py from inside, requests.py does both to a service.

Start at proof.py.
"""
