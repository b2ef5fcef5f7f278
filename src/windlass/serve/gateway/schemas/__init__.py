"""The bodies of the API: requests, replies, and how a mistake is explained.

`request_body` turns bytes into a checked model of `requests` (with `values` and `formats` for fields that
need more than a type). `validation_errors` explains what is wrong and proposes a corrected request (`repair`,
`json_schema`). `replies` has the answers in OpenAI's shapes.
"""
