"""`windlass probe`: measures what a machine does in a training step. Several processes measure together.

`__main__` is the entry point; `kernel_times` measures single operations, `block_times` whole micro-batches of
small models.
"""
