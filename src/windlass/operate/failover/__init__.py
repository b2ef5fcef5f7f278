"""Proves that streams outlive the engines that write them.

    a service of several replicas -> clients that ask all the time -> faults at random moments in mid-stream
        -> every answer beside the undisturbed one, byte by byte

asks.py is what clients ask, listening.py how they read, faults.py what befalls the engines.

Start at proof.py.
"""
