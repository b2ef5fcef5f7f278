"""Prometheus metrics that several processes keep and any of them can report together.

    `series`             counters, gauges and histograms: an increment is one addition in mapped memory
    `metrics_registry`   the metrics of one process; text() reports those of all
    `multiprocess`       the registries of other processes: read, merged, folded when a process has ended

Every process has a registry: numbers in a mapped file, and a list of what they mean. The process that is
scraped reads all registries. Counters are summed, those of ended processes included; their gauges are
dropped. A process that is killed loses no count, because the mapped file outlives it.

    NAME.series    one line of JSON for each series, in order of creation; locked while its process lives
    NAME.values    float64, mapped; a series names the index of its first number, which its newest series owns
    ended.json     counters of registries that were folded together, and the names of those registries

Start at `metrics_registry`.
"""
