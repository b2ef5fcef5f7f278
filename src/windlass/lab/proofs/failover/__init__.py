"""Proves that streams outlive the engines that write them.

    a service of several replicas -> clients that ask all the time -> faults at random moments in mid-stream
        -> every answer beside the undisturbed one, byte by byte

requests.py is what clients ask, stream_reader.py how they read, engine_faults.py what befalls the engines.

Start at failover_proof.py.
"""
