"""Probes every replica with prompts whose answers are known, and marks replicas unhealthy.

    `golden_prompts`   the prompts (a pure function of the model) and their known answers
    `prober`           a thread for each replica: sends a prompt by `engine_client`, grades the answer
    `health_policy`    pure: n bad answers of m make a replica unhealthy, with hysteresis
    `monitor`          the controller: unhealthy, healthy again, or replaced

Start at `monitor`.
"""
