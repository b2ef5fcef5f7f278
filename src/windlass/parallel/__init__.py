"""One model, many devices.

    `partition` (which process computes which layers and features) -> `schedule` (rank placement, bubble,
    when a new partition pays off) -> `device_mesh` (this process's coordinates and process groups)
    -> `strategy`, which applies all of it to a single-device model from outside:
         `stage`                  keeps this process's slice of the model
         `tensor_parallel`        divides features; `vocab_loss` computes the loss over a divided vocabulary
         `context_parallel`       divides sequences
         `activation_checkpoint`  recomputes activations in the backward pass
         `pipeline`               runs stages in the order of a schedule
         `async_pipeline`         runs them without a flush after each batch, with the weight versions of
                                  `weight_stash` and the messages of `p2p`
    -> `local_params` (this process's weights as plain tensors, each a `param_shard` of a whole weight)

`partition`, `param_specs`, `memory` and `schedule` are pure and need no torch; `python -m windlass.parallel`
prints their results. `layer_profile` measures layer costs for a partition. `device` selects the device and
the number of threads. `process_group` gathers small JSON values from all ranks. `abort_comm` closes the
connections of a group, so that collectives waiting for a lost peer fail at once.

Start at `strategy`.
"""
