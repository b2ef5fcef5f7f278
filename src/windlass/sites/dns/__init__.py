"""Several sites behind one name: a DNS server that answers with the nearest healthy site.

    `site_probe`    probes every site's gateway with a prompt whose answer is known -> Probe
    `site_health`   probes -> healthy or not, with hysteresis; draining (pure)
    `geo`           a client's network -> the sites in order of distance (pure)
    `dns_message`   a DNS query and the healthy sites -> the DNS answer (pure; dnspython does the wire format)
    `dns_server`    UDP and TCP; requests to drain and restore sites are files in its folder

Start at `dns_message`. `lab.proofs.sites.sites_proof` tests it in network namespaces.
"""
