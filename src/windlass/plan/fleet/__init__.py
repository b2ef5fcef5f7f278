"""Finds layouts for work on a fleet, explains the choice, or says why there is none.

    `request`       a PlanRequest from the CLI or the HTTP API -> `work` (what to train), `pools` (devices),
                    `constraints` (deadline, budget, objective)
    `answer`        the whole answer: search, choose, explain
    `fleet_search`  all pools in all sizes: `explore` (exhaustive) and `greedy` search over `layouts`,
                    `heterogeneous` pools together, the Pareto front (`pareto`)
    `run_estimate`  a layout's whole run: time with failures, money, energy
    `explain`       why this layout; `what_if` and `alternatives`: other ways; `timeline` of a step
    `infeasible`    the constraint that no layout meets, and `fixes` that were tried
    `answer_facts`  the answer as plain data; `choices`: names that a request may use

Start at `request`, then `answer`.
"""
