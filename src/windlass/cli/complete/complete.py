"""`windlass complete`: offer what could come next in a half-typed call, and the whole of it."""

from __future__ import annotations

import argparse

from windlass.cli.complete.shells import answer_shell
from windlass.cli.home import add_home
from windlass.completion.suggestions import SERVER

EPILOG = """\
A call is a body of JSON, a curl command, Python (windlass.sdk, OpenAI's client, httpx, requests) or a command
of windlass itself. Names, parameters and their ranges come from the server's own document when it answers,
and otherwise from the document that this version of windlass would serve.

examples:
  windlass complete '{"model": "poems", "temp'
  windlass complete 'curl http://127.0.0.1:8000/v1/ch'
  windlass complete 'client.chat.completions.create(model="po' --json
  windlass complete '{"model": "poems", "promt": "Hi", "max_tokens": "20"' --write python
  windlass complete 'windlass serve poems --rep'
  windlass complete '{"mod": "poems"}' --cursor 5          the place of the cursor, in characters
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("text", metavar="CALL", help="the call, as far as it has been typed")
    parser.add_argument(
        "--cursor", type=int, metavar="N", help="where the cursor stands (default: at the end)"
    )
    parser.add_argument(
        "--kind",
        choices=("auto", "json", "curl", "python", "cli"),
        default="auto",
        help="what it is (default: auto)",
    )
    parser.add_argument("--path", metavar="PATH", default="", help="the route that a body of JSON is for")
    parser.add_argument(
        "--server", metavar="URL", default=SERVER, help=f"the server to ask (default: {SERVER})"
    )
    parser.add_argument(
        "--key-env",
        metavar="VARIABLE",
        default="WINDLASS_KEY",
        help="where its key is (default: WINDLASS_KEY)",
    )
    parser.add_argument(
        "--write",
        choices=("curl", "python", "javascript", "java", "json"),
        help="print only the whole call, in this language",
    )
    parser.add_argument("--shell", choices=("bash", "zsh", "fish"), help=argparse.SUPPRESS)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the whole offer as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer a shell, or a person; only a person waits for what is imported for people."""
    if args.shell is not None:
        return answer_shell(args.shell, args.text, args.cursor)
    from windlass.cli.complete.suggestion_output import tell_offer

    return tell_offer(args)
