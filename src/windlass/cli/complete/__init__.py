"""Completion of half-typed calls and commands: `complete`, `completion` and what they use.

`shells` answers shells that complete a command; `verbs` describes the command line, `names` lists models,
runs and job files, `server_schema` reads the server's OpenAPI document, `suggestion_output` prints
suggestions.
"""
