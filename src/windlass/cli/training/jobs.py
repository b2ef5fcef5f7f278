"""`windlass jobs`: submit, list, show, follow and change runs."""

from __future__ import annotations

import argparse
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.cli.training.hyperparameter_table import effective_rows
from windlass.cli.training.jobs_audit import account_facts, add_audit, print_account
from windlass.cli.training.jobs_change import CHANGES, add_change, add_scale, values_words
from windlass.cli.training.jobs_control import (
    add_control,
    explain_job,
    list_jobs,
    log_job,
    queue_of,
    run_serve,
    set_priority,
    show_job,
)
from windlass.cli.training.jobs_logs import add_logs, clock, run_logs
from windlass.cli.training.jobs_submit import add_submit
from windlass.cli.training.jobs_verify import add_verify
from windlass.runs.run_status import RunState, all_runs, facts_of, find_run, saved_cut, state_of
from windlass.spec.layout import Layout, Partition
from windlass.spec.units import format_bytes, format_count

EPILOG = """\
examples:
  windlass jobs submit job.toml                               train in the background
  windlass jobs list
  windlass jobs show poems                                    its newest run; poems/2 is the second one
  windlass jobs logs poems --follow
  windlass jobs audit poems                                   was every sample used exactly once?
  windlass jobs verify poems                                  is its newest checkpoint intact?
  windlass jobs set poems train.learning_rate=1e-4            from the next step boundary
  windlass jobs set poems sync.policy=diloco sync.every=20 --wait
  windlass jobs scale poems 4                                 continue an elastic run with 4 workers
  windlass jobs pause poems, resume poems, undo poems
  windlass jobs stop poems --wait                             saves; continue with `windlass train --resume`

With --control URL, or $WINDLASS_CONTROL and the key in $WINDLASS_CONTROL_KEY, submit, list, show, logs and
stop use the job queue of a control plane (`windlass control`):
  windlass jobs submit job.toml --control http://10.0.0.1:8100 --priority 5
  windlass jobs list --control http://10.0.0.1:8100           running and waiting jobs, and why they wait
  windlass jobs explain poems, priority poems 10
  windlass jobs serve poems --port 8000                       keep a service running there

`windlass jobs SUBCOMMAND --help` explains each.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    add_submit(_verb(verbs, "submit", "start training in the background, and print the run's name"))
    listed = _verb(verbs, "list", "list runs and their states")
    add_control(listed)
    _add_output(listed, run_list)
    shown = _verb(verbs, "show", "show a run: state, changes and their authors, incidents")
    add_name(shown)
    add_control(shown)
    _add_output(shown, run_show)
    _add_queue_verbs(verbs)
    logs = _verb(verbs, "logs", "print the events of a run, one per line")
    add_name(logs)
    add_logs(logs)
    add_control(logs)
    logs.set_defaults(run=run_logs_of)
    add_audit(verbs)
    add_verify(verbs)
    scaled = _verb(verbs, "scale", "change the number of workers of an elastic run")
    add_name(scaled)
    add_scale(scaled)
    for change in CHANGES:
        verb = _verb(verbs, change.name, change.purpose)
        add_name(verb)
        add_change(verb, change)


def _add_queue_verbs(verbs: Any) -> None:
    """Add the verbs that need the queue of a control plane."""
    explained = _verb(verbs, "explain", "show why a job waits in the queue of a control plane")
    explained.epilog = "example:\n  windlass jobs explain poems --control http://10.0.0.1:8100\n"
    _add_queued(explained, explain_job)
    ranked = _verb(verbs, "priority", "change the priority of a queued job")
    ranked.epilog = "example:\n  windlass jobs priority poems 10 --control http://10.0.0.1:8100\n"
    _add_queued(ranked, set_priority)
    ranked.add_argument("priority", type=int, metavar="N", help="higher runs first")
    served = _verb(verbs, "serve", "run a service under a control plane")
    served.epilog = "example:\n  windlass jobs serve poems@prod --port 8000 --control http://10.0.0.1:8100\n"
    served.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION or NAME@ALIAS")
    served.add_argument("--name", help="name of the job (default: serve-MODEL)")
    served.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    served.add_argument("--port", type=int, help="port to listen on (default: 8000)")
    served.add_argument("--replicas", type=int, metavar="N", help="engine replicas (default: 1)")
    served.add_argument("--no-keys", action="store_true", help="serve without API keys")
    served.add_argument("--cores", type=float, help="cores for each engine (default: 1)")
    served.add_argument("--memory", metavar="SIZE", help="memory limit of each engine, e.g. 4GiB")
    served.add_argument("--gpus", type=int, help="GPUs for each engine")
    served.add_argument("--priority", type=int, metavar="N", help="higher runs first (default: 0)")
    add_control(served)
    served.add_argument("--json", action="store_true", help="print JSON")
    served.set_defaults(run=run_serve)


def _add_queued(parser: argparse.ArgumentParser, action: Any) -> None:
    parser.add_argument("name", metavar="NAME", help="the job's name, or its uid")
    add_control(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=action)


def run_logs_of(args: argparse.Namespace) -> int:
    queue = queue_of(args)
    return run_logs(args) if queue is None else log_job(queue, args)


def add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME[/RUN]", help="the job's name, and which of its runs")


def _verb(verbs: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return verb


def _add_output(parser: argparse.ArgumentParser, action: Any) -> None:
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=action)


def run_list(args: argparse.Namespace) -> int:
    if (queue := queue_of(args)) is not None:
        return list_jobs(queue, args)
    standings = [state_of(folder) for folder in all_runs(home_of(args))]
    if args.json:
        print_json([facts_of(standing) for standing in standings])
        return 0
    if not standings:
        print("no runs yet; `windlass train` starts one")
        return 0
    rows = [
        (
            s.folder.name,
            s.stage,
            f"{s.step}/{s.run.steps}",
            _loss(s.last, ".3f"),
            format_count(round(s.last["tokens_per_s"])) if s.last.get("tokens_per_s") else "",
            str(s.run.layout),
        )
        for s in standings
    ]
    print_table(rows, ("run", "state", "step", "loss", "tokens/s", "layout"))
    return 0


def run_show(args: argparse.Namespace) -> int:
    if (queue := queue_of(args)) is not None:
        return show_job(queue, args)
    folder = find_run(home_of(args), args.name)
    standing, cut = state_of(folder), saved_cut(folder)
    facts = facts_of(standing)
    if args.json:
        print_json({**facts, "cut": cut.model_dump() if cut else None, **account_facts(folder.path)})
        return 0
    rows = [*_progress_rows(standing), *effective_rows(facts["effective"]), *_cut_rows(cut)]
    print_table(rows, ("what", "value"))
    if standing.requested is not None:
        print(f"- requested by {standing.requested.by}, pending: {values_words(_pending(standing))}")
    _print_history(standing)
    _print_generations(standing)
    print_account(folder.path)
    return 0


def _pending(standing: RunState) -> dict[str, Any]:
    assert standing.requested is not None
    return {key: value for key, value in standing.requested.values.items() if value != standing.values[key]}


def _print_history(standing: RunState) -> None:
    if not standing.history:
        return
    print()
    rows = [
        (r["id"], clock(r["time"]), r["step"], r.get("by", ""), _change_words(r)) for r in standing.history
    ]
    print_table(rows, ("change", "time", "step", "by", "what"))


def _change_words(record: dict[str, Any]) -> str:
    if "refused" in record:
        return f"refused: {record['refused']}"
    undone = f"undoes {record['undoes']}: " if record.get("undoes") else ""
    return undone + (values_words(record.get("changed", {})) or "nothing")


def _print_generations(standing: RunState) -> None:
    if not standing.generations:
        return
    print()
    rows = [
        (g["generation"], clock(g["time"]), len(g["members"]), _layout_words(g["layout"]), g["reason"])
        for g in standing.generations
    ]
    print_table(rows, ("generation", "time", "workers", "layout", "reason"))


def _layout_words(layout: Any) -> str:
    return str(Layout.model_validate(layout)) if isinstance(layout, dict) else str(layout)


def _progress_rows(standing: RunState) -> list[tuple[str, str]]:
    last, rows = standing.last, [("run", standing.folder.name), ("state", standing.stage)]
    rows.append(("step", f"{standing.step} of {standing.run.steps}"))
    if last.get("loss") is not None:
        rows.append(("loss", _loss(last, ".4f")))
    if last.get("tokens_per_s"):
        rows.append(("speed", f"{format_count(round(last['tokens_per_s']))} tokens/s"))
    if standing.evaluation:
        rows.append(
            ("validation", f"{standing.evaluation['loss']:.4f} at step {standing.evaluation['step']}")
        )
    if "bytes_sent" in last:
        rows.append(("sent", f"{format_bytes(last['bytes_sent'])} by each process to other replicas"))
    return rows


def _loss(last: dict[str, Any], form: str) -> str:
    """Format the loss of a step; stages that count n-grams have none."""
    return "" if last.get("loss") is None else format(last["loss"], form)


def _cut_rows(cut: Partition | None) -> list[tuple[str, str]]:
    if cut is None or len(cut.pieces) == 1:
        return []
    counts = " + ".join(str(piece.until - piece.first) for piece in cut.pieces)
    return [("cut", f"{counts} layers, {cut.how}")]
