"""From a terminal: one module a verb, none of which loads torch.

    main.py      names the verbs, finds the one asked for, turns errors into sentences and exit codes
    terminal.py  progress lines, tables, JSON
    home.py      where this user's corpora, runs and models are
    cli/complete/verbs.py     what the verbs take, as data; verb_cache.py remembers it for cli/complete/shells.py, which completes commands

Each verb module has `configure(parser)`, which declares its arguments and sets `run`.

Start at main.py.
"""
