"""Rolls a new version of a model out to its clients, and rolls it back by itself if it is worse.

    load -> gate (our own requests) -> shadow -> a growing share of the requests -> promoted
                      at any time: rolled back, with a report; no client sees a difference

    `stages`            pure: the stages of a roll-out, and when it moves to the next
    `rollout_state`     one roll-out under way: takes in evidence, returns what should run
    `controller`        drives all roll-outs of the service, a step at a time
    `ab_rounds`         a thread that sends both versions the same requests, on `eval_texts`
    `criteria`          how a pair of answers becomes numbers; `judge`: how those become a verdict
    `sequential_test`   the statistics: evidence that is valid at any time
    `report`            HOME/rollouts/ID/report.md and report.json

Start at `stages`.
"""
