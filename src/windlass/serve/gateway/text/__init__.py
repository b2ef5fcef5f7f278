"""Text and tokens of the served models.

`served_model` is one model that the gateway serves: its names, its tokenizer, where its answers end.
`tokenise` and `detokenise` convert between text and token ids, `templates` turns a conversation into a
prompt, and `answer` turns the tokens of one answer into text as they come.
"""
