"""Training with a pipeline that does not drain between batches (the schedule is parallel.async_pipeline).

`async_trainer` is the trainer; `tied_embedding` sums the gradients of the matrix that the first and the last
stage share.
"""
