"""Plans every option for every length of text of a corpus, on Apache Beam.

Start at stages.py; pipeline.py is the only module that imports Beam.
"""
