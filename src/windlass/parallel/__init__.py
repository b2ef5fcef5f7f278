"""One model, many devices.

    partition.py (who computes which layers and features) -> schedule.py (on which process, and is it still
    right) -> device_mesh.py (whom a process talks to) -> strategy.py, which applies it all from outside:
         stage.py     keeps the piece of the model that is this process's
         tensor_parallel.py    divides features, vocab_loss.py the loss over the words
         context_parallel.py   divides sequences
         activation_checkpoint.py forgets activations
         pipeline.py  runs stages in the order of a schedule; async_pipeline.py without waiting, with
                      the weights that weight_stash.py keeps and the messages of p2p.py
    -> local_params.py (what a process holds, as plain boxes of whole weights: param_shard.py)

partition.py, param_specs.py, memory.py and schedule.py are pure and need no torch; `python -m
windlass.parallel` shows cuts through them. layer_profile.py measures what a cut may go by. process_group.py
is how all processes of a run tell each other small facts.

Start at strategy.py.
"""
