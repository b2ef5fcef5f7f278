"""Model versions: immutable, with lineage and aliases.

`versions` is the registry. `import_export` reads and writes other formats, `sources` brings models from hubs,
stores, archives and packages, `compress` makes a smaller version, `evaluate` measures one on held-out text,
`nearest` finds similar tokens, `tag` labels tokens with hidden states. All but the registry itself start a
process that computes.
"""
