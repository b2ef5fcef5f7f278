"""One model, many devices.

    device.py   which device and how many threads this process computes with

Start at device.py.
"""
