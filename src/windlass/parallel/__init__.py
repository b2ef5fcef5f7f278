"""One model, many devices.

    cut.py (who computes which layers and features) -> schedule.py (on which process, and is it still right)
    -> grid.py (whom a process talks to) -> strategy.py, which applies it all from outside:
         stage.py     keeps the piece of the model that is this process's
         tensor.py    divides features, vocabulary.py the loss over the words
         context.py   divides sequences
         recompute.py forgets activations
         pipeline.py  runs stages in the order of a schedule; asynchronous.py without waiting, with
                      the weights that stash.py keeps and the messages of neighbour.py
    -> held.py (what a process holds, as plain boxes of whole weights: holding.py)

cut.py, inventory.py, memory.py and schedule.py are pure and need no torch; `python -m windlass.parallel`
shows cuts through them. costs.py measures what a cut may go by. crew.py is how all processes of a run tell
each other small facts.

Start at strategy.py.
"""
