"""Several sites behind one name: a DNS server that answers with the nearest one that is well.

    probing.py   asks every site's gateway a known question -> Probe
    standing.py  probes -> who is well, with hysteresis; who is being drained (pure)
    nearest.py   a client's network -> the sites in the order of their distance (pure)
    answers.py   a DNS query and the standings -> the DNS answer (pure; dnspython reads and writes the wire)
    server.py    UDP and TCP; what is asked while it runs (drain, restore) comes by files of its folder
    proof.py     plays two sites and a resolver in network namespaces, and cuts one off

Start at answers.py.
"""
