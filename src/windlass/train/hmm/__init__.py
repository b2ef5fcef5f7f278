"""Trains hidden Markov models with Baum-Welch (expectation-maximisation).

    run.json -> `run`: `initial` (`classes`) -> E-step over the sequences of `text`, block by block (`sweep`,
                `expectation`) -> sums that do not depend on order (`exact_sum`) -> M-step (`maximise`)
             -> the next iteration; at intervals an evaluation and `checkpoints`
             -> a model directory (windlass.models.hmm)

`convergence` decides whether an iteration was the last. `report` writes events and the final model.
`verify` recomputes the loss of a checkpoint. `tagging` finds the likeliest hidden states of a text for
`windlass tag`. windlass.lab.torch.hmm_bench compares all of it with hmmlearn.

Start at `run`.
"""
