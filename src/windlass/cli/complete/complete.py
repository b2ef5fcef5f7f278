"""`windlass complete`: complete a half-typed API call or command."""

from __future__ import annotations

import argparse

from windlass.cli.complete.shells import answer_shell
from windlass.cli.home import add_home
from windlass.completion.suggestions import SERVER

EPILOG = """\
A call is a body of JSON, a curl command, Python (windlass.sdk, OpenAI's client, httpx, requests) or a command
of windlass itself. Names, parameters and their ranges come from the server's OpenAPI document if it answers,
and otherwise from the document that this version of windlass would serve.

examples:
  windlass complete '{"model": "poems", "temp'
  windlass complete 'curl http://127.0.0.1:8000/v1/ch'
  windlass complete 'client.chat.completions.create(model="po' --json
  windlass complete '{"model": "poems", "promt": "Hi", "max_tokens": "20"' --write python
  windlass complete 'windlass serve poems --rep'
  windlass complete '{"mod": "poems"}' --cursor 5          cursor position, in characters
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("text", metavar="CALL", help="the call, as typed so far")
    parser.add_argument("--cursor", type=int, metavar="N", help="cursor position (default: the end)")
    parser.add_argument(
        "--kind",
        choices=("auto", "json", "curl", "python", "cli"),
        default="auto",
        help="kind of the call (default: auto)",
    )
    parser.add_argument("--path", metavar="PATH", default="", help="the route of a JSON body")
    parser.add_argument(
        "--server",
        metavar="URL",
        default=SERVER,
        help=f"the server to read models and schema from (default: {SERVER})",
    )
    parser.add_argument(
        "--key-env",
        metavar="VARIABLE",
        default="WINDLASS_KEY",
        help="environment variable with its API key (default: WINDLASS_KEY)",
    )
    parser.add_argument(
        "--write",
        choices=("curl", "python", "javascript", "java", "json"),
        help="print only the complete call, in this language",
    )
    parser.add_argument("--shell", choices=("bash", "zsh", "fish"), help=argparse.SUPPRESS)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print all suggestions as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer a shell or a person. Only a person waits for the slow imports."""
    if args.shell is not None:
        return answer_shell(args.shell, args.text, args.cursor)
    from windlass.cli.complete.suggestion_output import print_suggestions

    return print_suggestions(args)
