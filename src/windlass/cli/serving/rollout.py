"""`windlass rollout`: roll a new model version out to the clients of a service, or roll it back."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from windlass.cli.home import home_of
from windlass.cli.serving.state_argument import described, duration, opened_state, person, when
from windlass.cli.terminal import print_json, print_table
from windlass.registry.versions import Registry
from windlass.runs.progress_line import ProgressLine
from windlass.serve.records.rollouts import Command, Kind, RolloutRecord, Rollouts
from windlass.spec.errors import AskedWrongly
from windlass.spec.read import parse
from windlass.spec.rollout import Rollout
from windlass.supervisor.rollout.eval_texts import read_held_out

EPILOG = """\
The running service does the work: `windlass serve base` in one terminal, this in another. The new version is
compared with the old one throughout, and promoted, held or rolled back automatically (docs/service.md,
"Roll-out").

examples:
  windlass rollout start base@4 --watch                5%, 25%, 50%, 100% of the requests, then @prod
  windlass rollout start base@4 --held-out text.txt    evaluate it on your text
  windlass rollout start base@4 --blue-green           all requests at once
  windlass rollout start base@4 --shadow 0.2           copies of requests only; clients do not see its answers
  windlass rollout status base
  windlass rollout abort base
"""
LOOK_EVERY_S = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    examples = ["rollout start base@4 --watch", "rollout start base@4 --stages 0.1,0.5,1 --requests 50"]
    start = described(verbs, "start", "roll out a registered version", examples)
    start.add_argument("model", metavar="MODEL", help="NAME@VERSION of the new version")
    _configure_start(start)
    start.set_defaults(run=run_start)
    for name, action, purpose in (
        ("status", run_status, "show the state and the evidence of a roll-out"),
        ("abort", run_abort, "roll the new version back"),
        ("promote", run_promote, "promote the new version without waiting for evidence"),
    ):
        verb = described(verbs, name, purpose, [f"rollout {name} base"])
        verb.add_argument("rollout", metavar="ROLLOUT", help="id of the roll-out, or name of the model")
        verb.set_defaults(run=action)
        if name == "status":
            verb.add_argument("--watch", action="store_true", help="follow it until it ends")
    history = described(
        verbs, "history", "list roll-outs", ["rollout history", "rollout history base --json"]
    )
    history.add_argument("model", metavar="MODEL", nargs="?", default="", help="only roll-outs of this model")
    history.set_defaults(run=run_history)


def _configure_start(verb: argparse.ArgumentParser) -> None:
    kinds = verb.add_mutually_exclusive_group()
    kinds.add_argument("--canary", action="store_true", help="a growing share of the requests (default)")
    kinds.add_argument("--blue-green", action="store_true", help="all requests at once, after the gate")
    kinds.add_argument(
        "--weight", type=float, metavar="PART", help="a fixed share of the requests, until promote or abort"
    )
    kinds.add_argument(
        "--shadow",
        type=float,
        metavar="PART",
        help="copies of this share of the requests, until promote or abort",
    )
    verb.add_argument("--stages", metavar="PARTS", help="stages of a canary (default: 0.05,0.25,0.5,1)")
    verb.add_argument("--held-out", metavar="FILE", help="text that neither version was trained on")
    verb.add_argument("--requests", type=int, help="min answers in every stage (default: 20)")
    verb.add_argument("--seconds", help="min duration of every stage (default: 10s)")
    verb.add_argument("--patience", help="roll back if undecided for this long (default: 1d)")
    verb.add_argument("--standby", help="how long the old version stays ready (default: 10min)")
    verb.add_argument(
        "--no-gate", action="store_true", help="skip the golden prompts before the first request"
    )
    verb.add_argument("--watch", action="store_true", help="follow it until it ends")


def run_start(args: argparse.Namespace) -> int:
    if "@" not in args.model:
        raise AskedWrongly(f"'{args.model}' names no version", hint=f"give {args.model}@N")
    version = Registry(home_of(args)).find(args.model)
    kind, policy = policy_of(args)
    held_out = ""
    if args.held_out:
        held_out = str(Path(args.held_out).absolute())
        read_held_out(Path(held_out))
    with opened_state(args) as state:
        rollouts = Rollouts(state)
        record = rollouts.start(str(version), kind, policy, person(), held_out=held_out)
        if not args.watch:
            return _print_record(args, record)
        return _watch(args, rollouts, record.id)


def policy_of(args: argparse.Namespace) -> tuple[Kind, Rollout]:
    """Parse the options of a roll-out, with the checks of the job file."""
    kind: Kind = "canary"
    given: dict[str, Any] = {"gate": not args.no_gate}
    if args.stages is not None:
        given["stages"] = [_part(text, args.stages) for text in args.stages.split(",")]
    if args.blue_green:
        kind = "blue_green"
    elif args.weight is not None:
        kind, given["stages"] = "weights", [args.weight]
    elif args.shadow is not None:
        kind, given["shadow"] = "shadow", args.shadow
    if args.requests is not None:
        given["requests"] = args.requests
    for option in ("seconds", "patience", "standby"):
        text = getattr(args, option)
        given |= {option: duration(text, f"--{option}")} if text is not None else {}
    return kind, parse(Rollout, given, "rollout")


def run_status(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        rollouts = Rollouts(state)
        record = rollouts.find(args.rollout)
        return _watch(args, rollouts, record.id) if args.watch else _print_record(args, record)


def run_abort(args: argparse.Namespace) -> int:
    return _request(args, "abort")


def run_promote(args: argparse.Namespace) -> int:
    return _request(args, "promote")


def run_history(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        records = Rollouts(state).list(args.model)
    if args.json:
        print_json([_facts(record) for record in records])
    elif not records:
        print("no roll-outs yet; `windlass rollout start` starts one")
    else:
        print_table(
            [(r.id, r.candidate, r.stable, r.kind, _standing(r), when(r.made), r.reason) for r in records],
            ("roll-out", "new", "instead of", "kind", "state", "started", "why"),
        )
    return 0


def _request(args: argparse.Namespace, command: Command) -> int:
    with opened_state(args) as state:
        return _print_record(args, Rollouts(state).command(args.rollout, command, person()))


def _watch(args: argparse.Namespace, rollouts: Rollouts, id_: str) -> int:
    """Print every change until the roll-out ends; exit code 0 only if the version was promoted."""
    line, shown = ProgressLine(quiet=args.json), ""
    while True:
        record = rollouts.find(id_)
        if _standing(record) != shown:
            shown = _standing(record)
            line.say(f"{record.id}  {record.candidate}  {shown}")
        if record.is_ended:
            break
        time.sleep(LOOK_EVERY_S)
    _print_record(args, record)
    return 0 if record.state == "promoted" else 1


def _print_record(args: argparse.Namespace, record: RolloutRecord) -> int:
    if args.json:
        print_json(_facts(record))
        return 0
    print(f"{record.id}: {record.candidate} instead of {record.stable or record.name}: {_standing(record)}")
    if record.reason:
        print(f"    {record.reason}")
    rows = [
        (row["criterion"], row["comparisons"], "" if row["mean"] is None else f"{row['mean']:.4g}",
         f"{row['tolerated']:.3g}", f"{row['against']:.3g} of {row['against_needed']:.3g}",
         f"{row['for']:.3g} of {row['for_needed']:.3g}")
        for row in record.report.get("criteria", [])
    ]  # fmt: skip
    if rows:
        print_table(rows, ("criterion", "comparisons", "mean", "tolerated", "against it", "for it"))
        print(f"full report: {home_of(args) / 'rollouts' / record.id / 'report.md'}")
    elif not record.is_ended and not record.driver:
        print("    no service has started it yet; run `windlass serve` with the same --home or --state")
    return 0


def _facts(record: RolloutRecord) -> dict[str, Any]:
    names = ("id", "name", "stable", "candidate", "kind", "state", "weight", "command", "reason", "who")
    return {
        **{name: getattr(record, name) for name in names},
        "made": when(record.made),
        "changed": when(record.changed),
        "report": record.report,
    }


def _standing(record: RolloutRecord) -> str:
    state = record.state.replace("_", " ")
    return f"{state} at {record.weight:.0%}" if record.state == "canary" else state


def _part(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AskedWrongly(
            f"--stages {whole}: '{text}' is not a number", hint="e.g. 0.05,0.25,0.5,1"
        ) from None
