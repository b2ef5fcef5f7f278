"""Several sites behind one name: a DNS server that answers with the nearest one that is well.

    site_probe.py   asks every site's gateway a known question -> Probe
    site_health.py  probes -> who is well, with hysteresis; who is being drained (pure)
    geo.py   a client's network -> the sites in the order of their distance (pure)
    dns_message.py   a DNS query and the standings -> the DNS answer (pure; dnspython reads and writes the wire)
    dns_server.py    UDP and TCP; what is asked while it runs (drain, restore) comes by files of its folder
    lab/proofs/sites/sites_proof.py     plays two sites and a resolver in network namespaces, and cuts one off

Start at dns_message.py.
"""
