"""The verbs of `windlass jobs` that change a running job."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json
from windlass.cli.training.hyperparameter_table import sync_words
from windlass.cli.training.jobs_control import add_control, queue_of, stop_job
from windlass.runs.run_settings import (
    await_scaled,
    await_stopped,
    await_taken,
    pause,
    request_settings,
    scale,
    stop,
    undo,
    unpause,
)
from windlass.runs.run_status import find_run
from windlass.runs.training import RunFolder
from windlass.spec.errors import AskedWrongly
from windlass.spec.layout import Layout
from windlass.spec.settings import Settings
from windlass.spec.sync import Sync

WAIT_S = 60.0


@dataclass(frozen=True)
class ChangeVerb:
    """A verb: its purpose, the request that it makes, and the sentence printed afterwards."""

    name: str
    purpose: str
    ask: Callable[[RunFolder, argparse.Namespace], Settings]
    done: str


CHANGES = (
    ChangeVerb(
        "set",
        "change settings of a running job: [sync], and learning_rate, micro_batch_sequences, steps,"
        " checkpoint_every, evaluate_every and log_every of [train]",
        lambda folder, args: request_settings(folder, args.settings, by=args.by),
        "will continue from its next step boundary with",
    ),
    ChangeVerb(
        "pause",
        "pause a run at its next step boundary, with everything kept in memory",
        lambda folder, args: pause(folder, by=args.by),
        "will pause at its next step boundary",
    ),
    ChangeVerb(
        "resume",
        "resume a paused run",
        lambda folder, args: unpause(folder, by=args.by),
        "will resume",
    ),
    ChangeVerb(
        "stop",
        "save a checkpoint and stop a run; `windlass train JOB --resume` continues from it",
        lambda folder, args: stop(folder, by=args.by),
        "will save a checkpoint at its next step boundary and stop",
    ),
    ChangeVerb(
        "undo",
        "revert the last change of settings; a second undo restores it",
        lambda folder, args: undo(folder, by=args.by),
        "will continue from its next step boundary with",
    ),
)


def add_change(parser: argparse.ArgumentParser, change: ChangeVerb) -> None:
    if change.name == "set":
        parser.add_argument(
            "settings",
            nargs="+",
            metavar="TABLE.KEY=VALUE",
            help="what to change, e.g. train.learning_rate=1e-4",
        )
    add_request_options(parser)
    if change.name == "stop":
        add_control(parser)
    parser.set_defaults(run=lambda args: run_change(args, change))


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all requests to a run."""
    parser.add_argument(
        "--by", metavar="NAME", help="author of the request, for the journal (default: user@host)"
    )
    parser.add_argument(
        "--wait",
        nargs="?",
        type=float,
        const=WAIT_S,
        metavar="S",
        help=f"wait until it is done, at most S seconds (default: {WAIT_S:g})",
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_change(args: argparse.Namespace, change: ChangeVerb) -> int:
    check_request_options(args)
    if change.name == "stop" and (queue := queue_of(args)) is not None:
        return stop_job(queue, args)
    folder = find_run(home_of(args), args.name)
    settings = change.ask(folder, args)
    taken: dict[str, Any] = {}
    if args.wait is not None:
        taken = _awaited(folder, settings, args.wait)
    if args.json:
        print_json({"run": folder.name, **settings.model_dump(mode="json"), "taken": taken or None})
    elif "refused" in taken:
        print(f"run {folder.name} refused the change: {taken['refused']}")
    else:
        print(_sentence(folder, settings, change, taken))
    return 1 if "refused" in taken else 0


def add_scale(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  windlass jobs scale poems 4 --wait\n"
    parser.add_argument("workers", type=int, metavar="N", help="number of workers")
    add_request_options(parser)
    parser.set_defaults(run=run_scale)


def run_scale(args: argparse.Namespace) -> int:
    check_request_options(args)
    folder = find_run(home_of(args), args.name)
    scale(folder, args.workers, by=args.by)
    generation = None
    if args.wait is not None:
        generation = await_scaled(folder, args.workers, timeout_s=args.wait)
    if args.json:
        print_json({"run": folder.name, "workers": args.workers, "generation": generation})
    elif generation is not None:
        layout = Layout.model_validate(generation["layout"])
        print(f"run {folder.name} trains with {args.workers} workers, {layout}: {generation['reason']}")
    else:
        print(f"run {folder.name} will continue with {args.workers} workers")
    return 0


def check_request_options(args: argparse.Namespace) -> None:
    if args.wait is not None and not 0 < args.wait < float("inf"):
        raise AskedWrongly(f"--wait {args.wait:g}: must be a number of seconds above 0")
    if args.by is not None and (not args.by.strip() or not args.by.isprintable()):
        raise AskedWrongly("--by: must be a printable name")


def values_words(values: dict[str, Any]) -> str:
    """Describe changed settings in a few words."""
    return ", ".join(_word(key, value) for key, value in values.items())


def _awaited(folder: RunFolder, settings: Settings, timeout_s: float) -> dict[str, Any]:
    if settings.stop:
        await_stopped(folder, timeout_s=timeout_s)
        return {}
    return await_taken(folder, settings, timeout_s=timeout_s)


def _sentence(folder: RunFolder, settings: Settings, change: ChangeVerb, taken: dict[str, Any]) -> str:
    if taken:
        return (
            f"run {folder.name}, after step {taken['step']}: {values_words(taken['changed']) or 'unchanged'}"
        )
    if settings.stop and change.name == "stop":
        return f"run {folder.name} {change.done}"
    wanted = {key: value for key, value in settings.values.items() if value not in (None, False)}
    more = f": {values_words(wanted) or 'everything as planned'}" if change.done.endswith("with") else ""
    return f"run {folder.name} {change.done}{more}"


def _word(key: str, value: Any) -> str:
    if key in ("paused", "stop"):
        return key if value else f"not {key}" if key == "paused" else "no stop"
    if value is None:
        return f"{key.replace('_', ' ')} as planned"
    if key == "sync":
        return sync_words(Sync.model_validate(value))
    return (
        f"{key.replace('_', ' ')} {value:g}"
        if isinstance(value, float)
        else f"{key.replace('_', ' ')} {value}"
    )
