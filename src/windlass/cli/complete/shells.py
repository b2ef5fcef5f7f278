"""Answers shells that complete a windlass command: one candidate per line.

This runs between two key strokes, so it imports only what it needs and never the verbs: their options come
from the cache (cli/verb_cache.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from windlass.cli.complete.names import files, home_for, model_names, run_names
from windlass.cli.complete.verbs import verbs_for
from windlass.cli.main import VERBS
from windlass.completion.cli_text import PROGRAM
from windlass.completion.from_cli import Shell
from windlass.completion.shell_text import read_words
from windlass.spec.errors import nearest

BREAKS = "COMP_WORDBREAKS"
KEPT = "@$"
"""bash splits words at the characters of COMP_WORDBREAKS and replaces the text behind the last one; in a word
that begins with one of KEPT it replaces that character as well."""


def answer_shell(shell: str, line: str, cursor: int | None) -> int:
    """Print the words that fit at the cursor; zsh and fish also get their descriptions."""
    place = len(line) if cursor is None else max(0, min(cursor, len(line)))
    before = line[:place]
    finished = before[: before.rfind(" ") + 1]  # a verb that is being typed need not be loaded
    known = Shell(verbs_for(verb_in(finished)), names_for(line, place), before, place)
    typed = known.typed.text
    begun = typed.partition("=")[2] if typed.startswith("-") and "=" in typed else typed
    found = [each for each in known.candidates() if each.text.startswith(begun)]
    if not typed.startswith("-"):
        found = [each for each in found if not each.text.startswith("-")] or found
    for each in found:
        word = each.insert.strip()
        if shell == "bash":
            print(_behind_break(word, typed))
        else:
            print(f"{word}\t{each.about.splitlines()[0] if each.about else ''}")
    return 0


def names_for(text: str, cursor: int | None, home: str | None = None) -> dict[str, list[str]]:
    """Return the existing names, by their metavar in the help."""
    words = [word.text for word in read_words(text[:cursor])]
    place = Path(home) if home is not None else home_for(words)
    typed = words[-1] if words and not text[:cursor][-1:].isspace() else ""
    typed = typed.partition("=")[2] if typed.startswith("-") else typed
    plain = files(typed)
    jobs = files(typed, ".toml")
    return {
        "MODEL": model_names(place),
        "RUN": run_names(place),
        "JOB.toml": jobs,
        "FILE.toml": jobs,
        "FILE": plain,
        "SOURCE": plain,
        "PATH": plain,
        "DIR": [each for each in plain if each.endswith("/")],
        "DIRECTORY": [each for each in plain if each.endswith("/")],
    }


def verb_in(text: str) -> str | None:
    """Return the verb of a command, or the one that it most likely means."""
    words = [word.text for word in read_words(text)]
    after = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else []
    verb = next((word for word in after if not word.startswith("-")), None)
    return verb if verb is None or verb in VERBS else nearest(verb[:100], list(VERBS))


def _behind_break(word: str, typed: str) -> str:
    breaks = os.environ.get(BREAKS, "")
    cut = max((typed.rfind(sign) + (sign not in KEPT) for sign in breaks), default=0)
    return word[max(0, cut) :]
