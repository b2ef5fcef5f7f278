"""Learns hidden Markov models: expect, add up, maximise, again.

    run.json -> run.py: initial.py (classes.py) -> a sweep through the text, block by block (sweep.py,
                expectation.py) -> sums that have no order (exact_sum.py) -> maximise.py -> the next sweep
             -> now and then evaluation and checkpoints.py -> a model directory (windlass.models.hmm)

convergence.py decides whether an iteration was the last; report.py tells of it and writes the result;
settings_requests.py takes what people ask of a run meanwhile. tagging.py says which states are behind a text;
lab/torch/hmm_bench.py holds all of it against hmmlearn.

Start at run.py.
"""
