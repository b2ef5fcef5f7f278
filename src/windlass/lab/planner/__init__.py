"""Fits the planner's constants to published measurements, and validates them on sources left out of the fit.

`rows` reads published training rows (`row_device`, `row_words`), `fit_time` and `fit_memory` fit constants to
them, `published`, `memory_validation` and `regret` validate the predictions, and `validation_report` puts the
results together. `serving_rows`, `serving_fit` and `serving_validation` do the same for serving.
`plan_verify` runs layouts (`trials`) on this machine and compares them with their predictions.

Start at `published`.
"""
