"""Reads a half-typed call, and offers what could come next.

    text and cursor -> its kind (kinds.py) -> its pieces -> where the cursor stands (cursor.py) -> Offer

    complete.py      the door: one text, one cursor, one Offer
    json_text.py     values as JSON and Python write them, finished or not, as a tree with places (tree.py)
    shell_text.py    words of a shell; curl_text.py, cli_text.py and python_text.py what calls are made of
    from_curl.py     from_python.py, from_cli.py: who may stand at the cursor in each kind of call
    bodies.py        the same inside a body, wherever one stands (body.py)
    schema.py        what the OpenAPI document says of fields; addresses.py what it says of paths and headers
    rank.py          which name was most likely meant
    fixes.py         slips that need no guessing; autoclose.py what a text lacks to be whole
    fill.py          a body that the server takes; write.py the call in five languages

All of it is driven by the server's own document, the names of its models and, for our own command line, a
description of its verbs, so that what is offered is what there is. Nothing here reads or writes anything, and
no text, however broken, makes it fail.

Start at complete.py.
"""
