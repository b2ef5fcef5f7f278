"""Training with a pipeline that does not stop between batches (the schedule is parallel.async_pipeline).

`async_trainer` is the trainer; `tied_embedding` keeps the matrix that the first and the last stage share.
"""
