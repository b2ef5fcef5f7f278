"""How many machines, how long, how much; without torch and before anything runs.

    Job + corpus facts + machine -> search.py -> Run (every open choice made, with reasons)

machine.py measures this machine, duration.py and memory.py say what a step costs, loss.py what a model
of some size learns from some tokens; search.py weighs them.

Start at search.py.
"""
