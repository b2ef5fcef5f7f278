"""When and how replicas synchronise.

`policy` decides when; `data_parallel` does it; `compression` makes what is sent smaller;
`deterministic_reduce` adds up in a fixed order; `replicated_params` is what the trainer uses of them;
`comm_counter` counts the bytes.
"""
