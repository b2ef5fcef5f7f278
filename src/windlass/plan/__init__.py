"""How many machines, how long, how much; without torch and before anything runs.

    Job + corpus facts + this machine -> search.py -> Run (every open choice made, with reasons)
    Job + fleet -> fleet/ (layouts, choice, what is in the way) -> report/

cost/ says what a step of training takes, holds and costs on any device, with constants that judge/ fits to
published measurements; local/ says it of our own trainer on this machine, as probed; loss.py, loss_fit.py and
pilot.py what a model learns; serving/ how many replicas some traffic needs; sweep/ plans a whole corpus.
relayout.py and stragglers.py decide for elastic runs while they go on.

Start at search.py for this machine, at fleet/wish.py for a fleet.
"""
