"""Batches in, checkpoints out.

    run.json -> loop.py -> trainer.py: batch (corpus.batches) -> loss (objective.py) -> update (optimize.py)
             -> now and then evaluate.py, sample.py, checkpoint.py -> result.py

journal, TensorBoard and the parent process hear of it through record.py. The order of samples and the
masks are pure functions of position, so a run is resumed from a checkpoint and one integer.

Start at loop.py.
"""
