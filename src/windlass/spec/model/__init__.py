"""The shapes of neural models: what all have in common, the features of decoders, and their config.json.

`network` is the base class: sizes, the list of weights, FLOPs. `decoder` has DecoderShape and the features of
every decoder family. `decoder_config` reads and writes the config.json of each family, `rope_config` the part
of it about rotary positions.

Start at `decoder`.
"""
