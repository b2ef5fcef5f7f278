"""Keeps a service running: engine replicas and gateways, as many and of the versions that are desired.

    observe (processes, gateways' reports) -> controllers (health, roll-out, autoscale, retention)
        -> reconcile (pure: desired x running -> start, drain, stop) -> act -> send gateways the routing

    `supervisor`           the loop, one step at a time; `background_service` runs it in a thread
    `service_spec`         what `windlass serve` was asked to serve, and the command lines of its processes
    `desired`              what should run; `state`: what runs, and the protocol of controllers
    `reconcile`            pure: which replicas to start, drain and stop, when to restart, what to route
    `processes`            engine and gateway processes; `liveness_probe` pings an engine
    `gateways`             starts and restarts the gateways
    `gateway_channel`      the socket to the gateways: routing tables out, reports in
    `controllers`          opens them: `health`, `rollout`, `autoscale`, `retention` (deletes audit records)
    `control_child`        the control API's process, which the service does not depend on
    `supervisor_metrics`   metrics on replicas

Start at `supervisor`.
"""
