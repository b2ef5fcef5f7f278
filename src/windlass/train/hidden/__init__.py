"""Learns hidden Markov models: expect, add up, maximise, again.

    run.json -> run.py: initial.py (classes.py) -> a sweep through the text, block by block (sweep.py,
                expectation.py) -> sums that have no order (tally.py) -> maximise.py -> the next sweep
             -> now and then evaluation and saves.py -> a model directory (windlass.models.hmm)

ascent.py decides whether an iteration was the last; account.py tells of it and writes the result;
requests.py takes what people ask of a run meanwhile. tagging.py says which states are behind a text; bench.py
holds all of it against hmmlearn.

Start at run.py.
"""
