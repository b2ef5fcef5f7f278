"""What a step of training takes and holds, in seconds, bytes, money and failures.

step_config.py says what a step is; step_time.py and device_memory.py predict it, with constants that judge/
fits.

Start at step_config.py.
"""
