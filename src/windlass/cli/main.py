"""Names the verbs, finds the one asked for, and turns errors into sentences and exit codes.

Only the module of the verb that was asked for is imported, so `--help` answers at once.
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
    "plan": "say what a job needs before it runs",
    "probe": "measure this machine, for plans that fit it",
    "train": "train a job and register the result",
    "kubernetes": "write the manifests of a job, a service or a tenant, and check them",
    "jobs": "list runs, show how one stands, change one while it goes on",
    "cluster": "show where processes run: machines, groups, what is free; end a group",
    "control": "runs, registered models and plans over HTTP, as `windlass jobs`, `models` and `plan` do",
    "simulate": "let a day of a large fleet pass in a minute, decided by the code that drives real ones",
    "eval": "measure loss, perplexity and bits per byte of a model",
    "generate": "continue a text",
    "tag": "say which hidden state is behind each token of a text",
    "models": "list, show, import, export, promote, roll back and delete models",
    "serve": "answer over HTTP, as OpenAI's API does",
    "rollout": "bring a new version to the clients of a service, or take it back",
    "keys": "make, list, rotate and revoke the keys of a service",
    "limits": "say how much tenants and keys may ask for, and show what is left",
    "tenants": "say whom a service works for, and how much each may ask",
    "sites": "one name for several sites; clients are sent to the nearest one that is well",
    "audit-log": "who changed what in a service, and whether that record is whole",
    "backup": "make, list, verify, prune and schedule backups of a home",
    "restore": "bring a home back from a backup",
    "prove": "show on these machines that layouts agree and that crashes lose nothing",
    "chaos": "hurt a run on purpose, and show that nothing is lost",
    "bench": "measure this machine and our speed beside peers",
    "complete": "offer what could come next in a half-typed call, and write the whole of it",
    "completion": "print the script with which a shell completes these commands",
}

GROUPS = {
    "training": ("up", "init", "corpus", "train", "jobs", "eval", "generate", "tag"),
    "planning": ("plan", "probe"),
    "serving": ("models", "serve", "rollout", "keys", "limits", "tenants", "audit-log"),
    "operations": ("kubernetes", "cluster", "control", "sites", "backup", "restore"),
    "lab": ("prove", "chaos", "bench", "simulate"),
    "complete": ("complete", "completion"),
}
"""Which package of windlass.cli has the module of a verb."""

EPILOG = """\
examples:
  windlass up --minutes 3                 train a small model on this machine and serve it
  windlass init job.toml && windlass train job.toml
  windlass serve NAME                     serve a registered model

`windlass VERB --help` explains a verb. Files are kept in .windlass (or $WINDLASS_HOME).
"""


class Parser(argparse.ArgumentParser):
    """Says a wrong argument as every other mistake is said: one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise AskedWrongly(message, hint=f"`{self.prog} --help` shows what is possible")


def run() -> NoReturn:
    """The process door: run the command of sys.argv and exit."""
    sys.exit(main(sys.argv[1:]))


def main(argv: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        args = _parse(argv)
        return int(args.run(args) or 0)
    except WindlassError as error:
        _tell(error, as_json="--json" in argv)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nwindlass: interrupted; nothing that was finished is lost", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left (`windlass ... | head`); that is no failure of ours.
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
            f"'{args.verb}' needs to know what to do",
            hint=f"`windlass {args.verb} --help` shows what is possible",
        )
    return args


def _configure(verb: str, parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """Let the verb's module declare its arguments; return the command without a word that chose another.

    A verb may have WORDS, each with a module of its own: `plan verify` is cli/planning/plan_verify.py. The
    word may also stand behind the first argument, as in `plan JOB.toml show-cut`.
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


def _tell(error: WindlassError, *, as_json: bool) -> None:
    if as_json:
        body: dict[str, Any] = {
            "error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        }
        print(json.dumps(body, ensure_ascii=False))
    print(f"windlass: {error}", file=sys.stderr)
