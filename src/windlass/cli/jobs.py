"""`windlass jobs`: list runs, show how one stands, and change one while it goes on."""

from __future__ import annotations

import argparse
from typing import Any

from windlass.cli.effective import effective_rows, sync_words
from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.operate.jobs import (
    Standing,
    all_runs,
    ask_for,
    effective_values,
    find_run,
    saved_cut,
    standing_of,
)
from windlass.spec.layout import Cut
from windlass.spec.units import format_bytes, format_count

EPILOG = """\
examples:
  windlass jobs list
  windlass jobs show poems                                    its newest run; poems/2 is the second one
  windlass jobs set poems sync.policy=diloco sync.every=20    from the next step border on
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, action, purpose in (
        ("list", run_list, "list runs and how they stand"),
        ("show", run_show, "show a run: the settings in force, step, loss, speed, bytes sent"),
        ("set", run_set, "change how the replicas of a run synchronise while it goes on"),
    ):
        verb = verbs.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
        if name != "list":
            verb.add_argument("name", metavar="NAME[/RUN]", help="the job's name, and which of its runs")
        if name == "set":
            verb.add_argument(
                "settings", nargs="+", metavar="sync.KEY=VALUE", help="what to change, e.g. sync.every=20"
            )
        add_home(verb)
        verb.add_argument("--json", action="store_true", help="print JSON")
        verb.set_defaults(run=action)


def run_list(args: argparse.Namespace) -> int:
    standings = [standing_of(folder) for folder in all_runs(home_of(args))]
    if args.json:
        print_json([_facts(standing) for standing in standings])
        return 0
    if not standings:
        print("nothing was trained yet; `windlass train` does it")
        return 0
    rows = [
        (
            s.folder.name,
            s.stage,
            f"{_step(s)}/{s.run.steps}",
            f"{s.last['loss']:.3f}" if s.last else "",
            format_count(round(s.last["tokens_per_s"])) if s.last else "",
            str(s.run.layout),
        )
        for s in standings
    ]
    print_table(rows, ("run", "state", "step", "loss", "tokens/s", "layout"))
    return 0


def run_show(args: argparse.Namespace) -> int:
    folder = find_run(home_of(args), args.name)
    standing, cut = standing_of(folder), saved_cut(folder)
    if args.json:
        print_json({**_facts(standing), "cut": cut.model_dump() if cut else None})
        return 0
    values = effective_values(standing.run, standing.sync)
    print_table([*_progress_rows(standing), *effective_rows(values), *_cut_rows(cut)], ("what", "value"))
    if standing.asked is not None:
        print(f"- asked for, not taken yet: {sync_words(standing.asked.sync)}")
    return 0


def run_set(args: argparse.Namespace) -> int:
    folder = find_run(home_of(args), args.name)
    settings = ask_for(folder, args.settings)
    if args.json:
        print_json({"run": folder.name, **settings.model_dump()})
    else:
        print(f"run {folder.name} will go on from its next step border with: {sync_words(settings.sync)}")
    return 0


def _progress_rows(standing: Standing) -> list[tuple[str, str]]:
    last, rows = standing.last, [("run", standing.folder.name), ("state", standing.stage)]
    rows.append(("step", f"{_step(standing)} of {standing.run.steps}"))
    if last:
        rows.append(("loss", f"{last['loss']:.4f}"))
        rows.append(("speed", f"{format_count(round(last['tokens_per_s']))} tokens/s"))
    if standing.evaluation:
        rows.append(
            ("validation", f"{standing.evaluation['loss']:.4f} at step {standing.evaluation['step']}")
        )
    if "bytes_sent" in last:
        rows.append(("sent", f"{format_bytes(last['bytes_sent'])} by each process between replicas"))
    return rows


def _cut_rows(cut: Cut | None) -> list[tuple[str, str]]:
    if cut is None or len(cut.pieces) == 1:
        return []
    counts = " + ".join(str(piece.until - piece.first) for piece in cut.pieces)
    return [("cut", f"{counts} layers, {cut.how}")]


def _step(standing: Standing) -> int:
    return int(standing.last.get("step", 0))


def _facts(standing: Standing) -> dict[str, Any]:
    """What a script wants to know about a run."""
    return {
        "run": standing.folder.name,
        "path": str(standing.folder.path),
        "state": standing.stage,
        "step": _step(standing),
        **{key: standing.last.get(key) for key in ("loss", "tokens_per_s", "bytes_sent")},
        "validation_loss": standing.evaluation.get("loss"),
        "effective": effective_values(standing.run, standing.sync),
        "asked": standing.asked.model_dump() if standing.asked else None,
    }
