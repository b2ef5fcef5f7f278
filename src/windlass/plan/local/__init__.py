"""Runs of our own trainer on this machine, predicted from what `windlass probe` measured.

    `profile` (measurements) -> `rates` (by size, over `curve`) -> `kernel_costs` (parts of a pass)
    -> `overhead` (from parts to whole passes) -> `step`, with `stages` and `pipeline_time` for pipelines
    `memory`     the peak of each process
    `calibrate`  corrects predictions by finished runs
    `machine`    cores, memory and speed, measured in under a second
    `ngram`, `hmm`   the families that are trained by counting

Start at `profile`.
"""
