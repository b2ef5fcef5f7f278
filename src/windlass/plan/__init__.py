"""How many machines, how long, how much; without torch and before anything runs.

    Job + corpus facts + this machine -> `search` -> Run (every open choice made, with reasons);
    `duration` and `memory` predict its steps, `hyperparameters` scales batch and learning rate with the
    replicas, and `count_models` plans the families that are trained by counting
    Job + fleet -> `fleet` (layouts, choice, or why there is none) -> `report`

`cost` predicts time, memory and money of a training step on any device, with constants fitted to published
measurements (windlass.lab.planner fits them); `local` does so for our own trainer on this machine, from its
profile. `loss`, `loss_fit` and `pilot` predict the loss; `serving` how many replicas some traffic needs;
`sweep` plans a whole corpus. `relayout` and `stragglers` decide for elastic runs while they train.

Start at `search` for this machine, at `fleet` for a fleet.
"""
