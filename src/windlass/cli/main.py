"""The list of verbs, the dispatch to the module of one, and errors as sentences and exit codes.

Only the module of the requested verb is imported, so `--help` answers at once.
Exit codes: 0 done, 2 asked wrongly, 1 our fault, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
from typing import Any, NoReturn

from windlass import __version__
from windlass.spec.errors import AskedWrongly, WindlassError, did_you_mean

VERBS = {
    "up": "corpus, plan, train, evaluate, register and serve, in one go",
    "init": "write a commented job file to start from",
    "corpus": "build, show and measure corpora",
    "plan": "plan a job before it runs: layout, time, memory and cost",
    "probe": "measure this machine, so that plans fit it",
    "train": "train a job and register the model",
    "kubernetes": "render and check the manifests of a job, a service or a tenant",
    "jobs": "submit, list, show and change training runs",
    "cluster": "show nodes, process groups and free resources; stop a group",
    "control": "run the control plane: a job queue, runs, models and plans over HTTP",
    "simulate": "simulate a day of a large fleet with the real scheduler and autoscaler",
    "eval": "measure loss, perplexity and bits per byte of a model",
    "generate": "continue a text",
    "chat": "talk to a model in the terminal",
    "tag": "tag each token of a text with its hidden state (HMM models)",
    "models": "list, show, import, export, promote, roll back and delete models",
    "serve": "serve models over HTTP with OpenAI's API",
    "rollout": "roll a new model version out to the clients of a service, or roll it back",
    "keys": "make, list, rotate and revoke the API keys of a service",
    "limits": "set the rate limits of tenants and keys, and show what is left",
    "tenants": "make, list, change and remove tenants, with their quotas",
    "sites": "one DNS name for several sites; clients are sent to the nearest healthy one",
    "audit-log": "show who changed what in a service, and verify that the log is intact",
    "backup": "make, list, verify, prune and schedule backups of a home directory",
    "restore": "restore a home directory from a backup",
    "prove": "prove on this machine that layouts agree and that crashes lose nothing",
    "chaos": "inject faults into a run, and show that nothing is lost",
    "bench": "benchmark training and serving against other software",
    "complete": "complete a half-typed API call or command",
    "completion": "print the shell completion script for bash, zsh or fish",
}

GROUPS = {
    "training": ("up", "init", "corpus", "train", "jobs", "eval", "generate", "tag"),
    "planning": ("plan", "probe"),
    "serving": ("models", "chat", "serve", "rollout", "keys", "limits", "tenants", "audit-log"),
    "operations": ("kubernetes", "cluster", "control", "sites", "backup", "restore"),
    "lab": ("prove", "chaos", "bench", "simulate"),
    "complete": ("complete", "completion"),
}
"""The package of windlass.cli that has the module of each verb."""

EPILOG = """\
examples:
  windlass up --minutes 3                 train a small model on this machine and serve it
  windlass chat smollm2                   talk to a small chat model, fetched when first used
  windlass init job.toml && windlass train job.toml
  windlass serve NAME                     serve a registered model

`windlass VERB --help` explains a verb. Files are kept in .windlass (or $WINDLASS_HOME).
"""


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument like every other user error: one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise AskedWrongly(message, hint=f"`{self.prog} --help` shows what is possible")


def run() -> NoReturn:
    """The console entry point: run the command of sys.argv and exit."""
    sys.exit(main(sys.argv[1:]))


def main(argv: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        args = _parse(argv)
        return int(args.run(args) or 0)
    except WindlassError as error:
        _print_error(error, as_json="--json" in argv)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nwindlass: interrupted; nothing that was finished is lost", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output closed the pipe (`windlass ... | head`); that is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="windlass",
        description="Plan, train, operate and serve language models on your own machines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"windlass {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    wanted = next((a for a in argv if not a.startswith("-")), None)
    if wanted is not None and wanted not in VERBS:
        raise AskedWrongly(f"'{wanted}' is not a verb of windlass", hint=did_you_mean(wanted, list(VERBS)))
    for verb, purpose in VERBS.items():
        inner = verbs.add_parser(
            verb,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if verb == wanted:
            argv = _configure(verb, inner, argv)
    args = parser.parse_args(argv)
    if args.verb is None:
        parser.print_help()
        raise SystemExit(0)
    if not hasattr(args, "run"):
        raise AskedWrongly(
            f"'{args.verb}' needs a subcommand",
            hint=f"`windlass {args.verb} --help` shows what is possible",
        )
    return args


def _configure(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """Let the verb's module declare its arguments; return the command without the word of a submodule.

    A verb may have WORDS, each with its own module: `plan verify` is cli/planning/plan_verify.py. The word
    may also follow the first argument, as in `plan JOB.toml show-cut`.
    """
    module = importlib.import_module(module_of(verb))
    words: dict[str, str] = getattr(module, "WORDS", {})
    first = argv.index(verb) + 1
    leading = itertools.takewhile(lambda a: not a.startswith("-"), argv[first : first + 2])
    at = next((i for i, a in enumerate(leading, first) if a in words), None)
    if at is None:
        module.configure(parser)
        return argv
    parser.prog += f" {argv[at]}"
    parser.description = words[argv[at]][0].upper() + words[argv[at]][1:] + "."
    importlib.import_module(f"{module.__name__}_{argv[at].replace('-', '_')}").configure(parser)
    return argv[:at] + argv[at + 1 :]


def module_of(verb: str) -> str:
    """Return the module that implements a verb."""
    group = next(group for group, verbs in GROUPS.items() if verb in verbs)
    return f"windlass.cli.{group}.{verb.replace('-', '_')}"


def _print_error(error: WindlassError, *, as_json: bool) -> None:
    if as_json:
        body: dict[str, Any] = {
            "error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        }
        print(json.dumps(body, ensure_ascii=False))
    print(f"windlass: {error}", file=sys.stderr)
