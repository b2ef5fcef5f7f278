"""`windlass prove layouts`: every layout trains the same model.

`comparison` says which runs are compared and when two count as equal; `layouts_proof` prepares them and
starts the processes that do the work (lab.torch.layout_proof).
"""
