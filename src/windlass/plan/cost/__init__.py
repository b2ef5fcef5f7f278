"""What a training step takes and holds, in seconds, bytes, money and failures.

    `step_config`    a step to predict: model, device, layout (`sizes`: from one of our shapes)
    `step_time`      seconds of a step: `step_inputs` (its numbers) -> `step_layer` (one layer and
                     micro-batch), `collectives` -> pipeline and gradients
    `device_memory`  bytes on a device, with `activations`
    `goodput`        failures and checkpoint intervals
    `storage`        bytes of checkpoints and network
    `money`          cost and energy

Constants: `fitted_constants` for time and `fitted_memory` for memory, fitted by windlass.lab.planner;
`software_defaults` from the frameworks' documentation. Tables: `catalogue` of devices, `models` by name.
`scaled` and `compress` give smaller models.

Start at `step_config`.
"""
