"""What is recorded about requests: metrics, traces and logs.

`request_trace` collects the ids and times of one request. `request_observer` turns a finished trace into
counts (`gateway_metrics`), a line of the access log (`access_log`) and an OpenTelemetry trace (`traces`).
`prompt_log` stores prompts, if the operator enables that.
"""
