"""Completes half-typed calls of the API and of the command line.

    text and cursor -> `kinds` -> parser (`*_text`) -> `cursor` -> completer (`from_*`) -> Suggestions
    (`suggestions`)

`complete` is the entry point. `kinds` detects JSON, curl, Python or a windlass command. Parsers accept
unfinished text: `json_text` reads JSON and Python values into a tree with positions (`tree`), `shell_text`
the words of a shell; `curl_text`, `cli_text` and `python_text` read calls. `cursor` finds the position in the
tree.

`from_curl`, `from_python` and `from_cli` suggest what can follow at the cursor; `bodies` and `body` do so
inside a JSON body. `schema` reads fields from the OpenAPI document, `addresses` paths and headers; `rank`
finds the name most likely meant. `fixes` corrects mistakes that need no guessing, `autoclose` finishes an
unfinished text, `fill` supplies missing values, and `write` prints the complete call in five languages.

Suggestions come from the server's own OpenAPI document, the names of its models and, for the command line, a
description of its verbs, so only what exists is suggested. This package does no I/O, and never fails on any
text.

Start at `complete`.
"""
