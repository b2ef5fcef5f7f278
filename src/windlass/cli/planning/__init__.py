"""Commands that plan: `plan` and its subcommands (`plan_fleet`, `plan_pilot`, `plan_published`,
`plan_serving`, `plan_show_cut` with `partition_picture`, `plan_sweep`, `plan_verify`) and `probe`.
"""
