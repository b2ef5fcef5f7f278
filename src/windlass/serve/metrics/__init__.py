"""Figures that several processes keep, and one answer tells together.

    series.py   counters, gauges and histograms: to count is one addition in mapped memory
    metrics_registry.py    the figures of one process; text() tells those of all
    multiprocess.py   the boards of the others: read, merged, and folded when their processes have ended

Every process has a board: numbers in a mapped file, and a list of what they mean. Whoever is asked reads all
boards. Counters are summed, those of processes that have ended included; gauges of the ended are dropped. A
process that is killed loses no count, because the numbers outlive it.

    NAME.series    one line of JSON for each series, in the order of making; locked while its process lives
    NAME.values    float64, mapped; a series says at which number its own begin, and the last to say so has it
    ended.json     counters of boards that were folded together, and the names of those boards

Start at metrics_registry.py.
"""
