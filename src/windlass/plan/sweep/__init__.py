"""Plans every option for every length of text of a corpus, on Apache Beam.

Start at `stages`; `pipeline` is the only module that imports Beam; `report` formats the results.
"""
