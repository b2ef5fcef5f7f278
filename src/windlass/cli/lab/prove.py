"""`windlass prove`: prove on this machine that training and serving keep their guarantees."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.proofs.backends.backends_proof import is_equal, prove_backends
from windlass.lab.proofs.control.control_proof import is_safe, prove_control
from windlass.lab.proofs.failover.failover_proof import prove_failover
from windlass.lab.proofs.failover.requests import ANSWERING
from windlass.lab.proofs.families_proof import is_equal as is_family_equal
from windlass.lab.proofs.families_proof import prove_families
from windlass.lab.proofs.gguf_proof import is_faithful, prove_gguf
from windlass.lab.proofs.launch_proof import prove_kills
from windlass.lab.proofs.layouts.comparison import LAYOUTS, LOSS_TOLERANCE, RESHARD, WEIGHT_TOLERANCE, fits
from windlass.lab.proofs.layouts.layouts_proof import prove
from windlass.lab.proofs.quota.quota_proof import prove_limits
from windlass.lab.proofs.replication_proof import is_lossless as is_replicated
from windlass.lab.proofs.replication_proof import prove_replication
from windlass.lab.proofs.restore_proof import is_back, prove_restore
from windlass.lab.proofs.rollback.rollback_proof import is_taken_back, prove_rollback
from windlass.lab.proofs.saves_proof import is_proved, prove_saves
from windlass.lab.proofs.servers.servers_proof import is_proved as is_lossless
from windlass.lab.proofs.servers.servers_proof import prove_server
from windlass.lab.proofs.sites.sites_proof import prove_sites
from windlass.lab.proofs.tenants.tenants_proof import is_apart, prove_tenants
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.layout import parse_layout
from windlass.spec.model.decoder import DECODERS
from windlass.spec.shape import FAMILIES

NETWORKS = (*FAMILIES, "mlp")

EPILOG = f"""\
layouts   every layout learns the same as one process: the loss of every step within {LOSS_TOLERANCE:g}
          (relative), every weight within {WEIGHT_TOLERANCE:g} at the end
reshard   a run continues under one layout after another as if the layout had never changed
families  every decoder family has the logits, gradients and files of transformers
kills     a killed process ends or restarts the run within seconds, and nothing is lost
saves     a save killed at any byte leaves the newest complete checkpoint intact
failover  engines are killed, frozen and disconnected in mid-stream; every stream continues, byte for byte
rollback  bad versions rolled out under traffic are rolled back automatically, good ones are promoted
server    workers and parameter servers are killed in mid-run: nothing is lost beyond the documented bound
limits    many gateways on one database admit no more than one would, and not much less
restore   everything but the backup is lost and restored; an old key works, a run resumes
control   control processes are killed under load: no job is lost or runs twice, another leads in seconds
tenants   a hostile tenant sees nothing of another, and slows it down no more than its share
backends  one job file trains here and on Ray with a lost node, to the same bits; Kubernetes accepts it
gguf      models imported from GGUF files answer as llama.cpp does (bench/peers --only llama.cpp makes it)
replication  versions reach all sites while processes are killed, requests fail and a site is partitioned

examples:
  windlass prove layouts --steps 50
  windlass prove layouts --layouts dp=2 --layouts tp=2,sequence=false --families llama
  windlass prove reshard
  windlass prove families --json
  windlass prove kills --times 20
  windlass prove saves --times 100
  windlass prove server --json
  windlass prove limits --processes 8
  windlass prove failover --times 200 --json
  windlass prove rollback --trials 20 --json
  windlass prove restore --to s3 --json
  windlass prove control --kills 100 --json
  windlass prove tenants --json
  windlass prove backends --json
  windlass prove gguf --text notes.txt --json
  windlass prove replication --versions 20 --kills 20 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    whats = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    layouts = whats.add_parser("layouts", help="every layout learns the same as one process")
    layouts.add_argument("--steps", type=int, default=50, help="steps of each run (default: 50)")
    layouts.add_argument(
        "--layouts", action="append", metavar="LAYOUT", help="only these; may be given several times"
    )
    layouts.set_defaults(run=run_layouts)
    reshard = whats.add_parser("reshard", help="a run continues under one layout after another")
    reshard.add_argument("--steps", type=int, default=20, help="steps under each layout (default: 20)")
    reshard.set_defaults(run=run_reshard)
    for inner in (layouts, reshard):
        inner.add_argument(
            "--families", default="llama,gpt2,bert", help="model families (default: llama,gpt2,bert)"
        )
    families = whats.add_parser("families", help="every decoder family computes what transformers computes")
    families.add_argument(
        "--families", default="", metavar="NAME,...", help="only these (default: all that there are)"
    )
    families.set_defaults(run=run_families)
    kills = whats.add_parser("kills", help="a killed process ends or restarts the run, and nothing is lost")
    kills.add_argument("--times", type=int, default=20, help="processes to kill (default: 20)")
    kills.set_defaults(run=run_kills)
    gguf = whats.add_parser("gguf", help="models imported from GGUF answer as llama.cpp does")
    gguf.add_argument(
        "--prompts", type=int, default=20, help="questions to each model, up to 20 (default: 20)"
    )
    gguf.add_argument("--text", type=Path, metavar="FILE", help="text to compare the perplexity on")
    gguf.add_argument("--threads", type=int, default=1, help="threads of either side (default: 1)")
    gguf.set_defaults(run=run_gguf)
    saves = whats.add_parser("saves", help="a save killed at any byte leaves a complete checkpoint")
    saves.add_argument("--times", type=int, default=100, help="saves to kill (default: 100)")
    saves.add_argument("--seed", type=int, default=1, help="seed of the kill points (default: 1)")
    saves.set_defaults(run=run_saves)
    failover = whats.add_parser("failover", help="streams survive the failure of engines")
    failover.add_argument("--times", type=int, default=30, help="faults in mid-stream (default: 30)")
    failover.add_argument("--replicas", type=int, default=3, help="engines, at least 2 (default: 3)")
    failover.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    failover.add_argument("--family", choices=ANSWERING, default=ANSWERING[0], help="model family")
    failover.set_defaults(run=run_failover)
    rollback = whats.add_parser("rollback", help="bad versions are rolled back, good ones are promoted")
    rollback.add_argument("--trials", type=int, default=20, help="good versions to roll out (default: 20)")
    rollback.add_argument(
        "--clients", type=int, default=4, help="clients that send requests all the time (default: 4)"
    )
    rollback.set_defaults(run=run_rollback)
    limits = whats.add_parser("limits", help="many gateways admit no more than the limits allow")
    limits.add_argument(
        "--processes", type=int, default=8, help="load generators, each with a gateway's limiter (default: 8)"
    )
    limits.add_argument("--seconds", type=float, default=12.0, help="duration (default: 12)")
    limits.add_argument(
        "--state", metavar="URL", help="database that they share (default: a fresh SQLite file)"
    )
    limits.set_defaults(run=run_limits)
    sites = whats.add_parser("sites", help="clients reach another site when theirs is partitioned")
    sites.add_argument("--ttl", type=int, default=5, help="TTL of DNS answers in seconds (default: 5)")
    sites.set_defaults(run=run_sites)
    restore = whats.add_parser("restore", help="everything but the backup is lost, and restored")
    restore.add_argument(
        "--to", default="folder", metavar="WHERE", help="folder, s3 (a server started here) or a URL"
    )
    restore.add_argument("--steps", type=int, default=40, help="training steps of the model (default: 40)")
    restore.set_defaults(run=run_restore)
    replication = whats.add_parser("replication", help="every site gets every version despite failures")
    replication.add_argument("--versions", type=int, default=20, help="versions to register (default: 20)")
    replication.add_argument("--kills", type=int, default=20, help="processes to kill (default: 20)")
    replication.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    replication.set_defaults(run=run_replication)
    server = whats.add_parser("server", help="parameter servers that die lose no update")
    server.set_defaults(run=run_server)
    control = whats.add_parser(
        "control", help="control processes are killed, and no job is lost or run twice"
    )
    control.add_argument("--kills", type=int, default=100, help="kills of control processes (default: 100)")
    control.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    control.add_argument(
        "--state", metavar="URL", help="database of the queue (default: a fresh SQLite file)"
    )
    control.set_defaults(run=run_control)
    tenants = whats.add_parser(
        "tenants", help="a hostile tenant sees nothing, and slows others no more than its share"
    )
    tenants.add_argument(
        "--jobs", type=int, default=6, help="jobs of the victim, with and without the attack (default: 6)"
    )
    tenants.set_defaults(run=run_tenants)
    backends = whats.add_parser("backends", help="one job file on this machine, Ray and Kubernetes")
    backends.set_defaults(run=run_backends)
    for inner in whats.choices.values():
        inner.add_argument("--json", action="store_true", help="print JSON")
        add_home(inner)


def run_layouts(args: argparse.Namespace) -> int:
    return _prove(args, "layouts", tuple(args.layouts or LAYOUTS))


def run_reshard(args: argparse.Namespace) -> int:
    return _prove(args, "reshard", RESHARD)


def run_families(args: argparse.Namespace) -> int:
    names = [name for name in args.families.split(",") if name]
    for name in names:
        if name not in DECODERS:
            raise BadInput(f"--families {name}: no decoder family", hint=did_you_mean(name, list(DECODERS)))
    line = ProgressLine(quiet=args.json)
    result = prove_families(home_of(args), names, lambda row: line.say(_family_words(row)))
    line.close()
    return _print(result, args, good=is_family_equal(result))


def _family_words(row: dict[str, Any]) -> str:
    verdict = "equal" if row["is_equal"] else "DIFFERENT"
    return (
        f"{row['name']}: logits {row['logit_difference']:.1e}, gradients {row['gradient_difference']:.1e},"
        f" round trip {'whole' if row['round_trip'] else 'FAILED'}: {verdict}"
    )


def run_kills(args: argparse.Namespace) -> int:
    _check_positive(args.times, "--times")
    line = ProgressLine(quiet=args.json)
    result = prove_kills(home_of(args), args.times, line.say)
    line.close()
    figures = result["figures"]
    kept = [figures[name] for name in ("ended_within_5_s", "named", "whole_checkpoints")]
    return _print(result, args, good=kept == [args.times] * 3 and not figures["orphans"])


def run_server(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    result = prove_server(home_of(args), line.say)
    line.close()
    return _print(result, args, good=is_lossless(result["figures"]))


def run_saves(args: argparse.Namespace) -> int:
    _check_positive(args.times, "--times")
    line = ProgressLine(quiet=args.json)
    result = prove_saves(home_of(args), args.times, line.say, seed=args.seed)
    line.close()
    return _print(result, args, good=is_proved(result["figures"]))


def run_failover(args: argparse.Namespace) -> int:
    _check_positive(args.times, "--times")
    if args.replicas < 2:
        raise BadInput(
            f"--replicas {args.replicas}: must be at least 2, so that another engine can take over"
        )
    line = ProgressLine(quiet=args.json)
    logs = home_of(args) / "logs"
    result = prove_failover(
        args.times, line.say, replicas=args.replicas, seed=args.seed, logs=logs, family=args.family
    )
    line.close()
    figures = result["figures"]
    return _print(result, args, good=not figures["broken"] and not figures["different"])


def run_gguf(args: argparse.Namespace) -> int:
    _check_positive(args.prompts, "--prompts")
    _check_positive(args.threads, "--threads")
    if args.text is not None and not args.text.is_file():
        raise BadInput(f"{args.text}: no such file", hint="--text names a text in UTF-8")
    line = ProgressLine(quiet=args.json)
    result = prove_gguf(
        home_of(args), line.say, prompts=min(args.prompts, 20), text=args.text, threads=args.threads
    )
    line.close()
    return _print(result, args, good=is_faithful(result["figures"]))


def run_rollback(args: argparse.Namespace) -> int:
    _check_positive(args.trials, "--trials")
    _check_positive(args.clients, "--clients")
    line = ProgressLine(quiet=args.json)
    result = prove_rollback(home_of(args), line.say, trials=args.trials, clients=args.clients)
    line.close()
    return _print(result, args, good=is_taken_back(result["figures"]))


def run_limits(args: argparse.Namespace) -> int:
    _check_positive(args.processes, "--processes")
    if not 0 < args.seconds < 1e6:
        raise BadInput(f"--seconds {args.seconds:g}: must be more than 0")
    line = ProgressLine(quiet=args.json)
    result = prove_limits(args.processes, args.seconds, line.say, state=args.state)
    line.close()
    beyond = ("overshoot", "day_overshoot", "permits_overshoot")
    return _print(result, args, good=not any(result["figures"][name] for name in beyond))


def run_sites(args: argparse.Namespace) -> int:
    _check_positive(args.ttl, "--ttl")
    line = ProgressLine(quiet=args.json)
    result = prove_sites(line.say, ttl_s=args.ttl)
    line.close()
    return _print(result, args, good=not result["figures"]["sdk_unanswered"])


def run_restore(args: argparse.Namespace) -> int:
    if args.steps < 4:
        raise BadInput(f"--steps {args.steps}: must be at least 4")
    line = ProgressLine(quiet=args.json)
    result = prove_restore(home_of(args), line.say, to=args.to, steps=args.steps)
    line.close()
    return _print(result, args, good=is_back(result["figures"]))


def run_tenants(args: argparse.Namespace) -> int:
    _check_positive(args.jobs, "--jobs")
    line = ProgressLine(quiet=args.json)
    result = prove_tenants(line.say, jobs=args.jobs)
    line.close()
    return _print(result, args, good=is_apart(result["figures"]))


def run_control(args: argparse.Namespace) -> int:
    _check_positive(args.kills, "--kills")
    line = ProgressLine(quiet=args.json)
    result = prove_control(home_of(args), args.kills, line.say, seed=args.seed, state=args.state)
    line.close()
    return _print(result, args, good=is_safe(result["figures"]))


def run_backends(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    result = prove_backends(home_of(args), line.say)
    line.close()
    return _print(result, args, good=is_equal(result["figures"]))


def run_replication(args: argparse.Namespace) -> int:
    _check_positive(args.versions, "--versions")
    _check_positive(args.kills, "--kills")
    line = ProgressLine(quiet=args.json)
    result = prove_replication(
        home_of(args), line.say, versions=args.versions, kills=args.kills, seed=args.seed
    )
    line.close()
    return _print(result, args, good=is_replicated(result["figures"]))


def _prove(args: argparse.Namespace, kind: Any, layouts: tuple[str, ...]) -> int:
    _check_positive(args.steps, "--steps")
    for layout in layouts:
        parse_layout(layout)
    families = [name.strip() for name in args.families.split(",")]
    for name in families:
        if name not in NETWORKS:
            raise BadInput(
                f"--families {args.families}: no family '{name}'", hint=did_you_mean(name, list(NETWORKS))
            )
        unfit = [layout for layout in layouts if not fits(name, layout)]
        if unfit and (kind == "reshard" or len(unfit) == len(layouts)):
            raise BadInput(f"--families {args.families}: '{name}' cannot have the layout {unfit[0]}")
    line = ProgressLine(quiet=args.json)
    result = prove(
        kind,
        home_of(args),
        families=families,
        layouts=layouts,
        steps=args.steps,
        report=line,
        tell=lambda event: _say(event, line),
    )
    line.close()
    figures = result["figures"]
    return _print(result, args, good=figures["layouts_equal"] == figures["layouts_tried"])


def _say(event: dict[str, Any], line: ProgressLine) -> None:
    if event.get("event") == "case":
        apart = (
            event["failure"]
            or f"loss {event['loss_difference']:.1e}, weights {event['weight_difference']:.1e}"
        )
        verdict = "equal" if event["equal"] else "DIFFERENT"
        line.say(f"{verdict:9}  {event['family']:5}  {event['layout']:44}  {apart}")
    elif event.get("event") == "warning":
        line.say(f"warning: {event['message']}")


def _print(result: dict[str, Any], args: argparse.Namespace, *, good: bool) -> int:
    if args.json:
        print_json(result)
    else:
        figures = result["figures"].items()
        print_table([(k, "-" if v is None else f"{v:.4g}") for k, v in figures], ("figure", "value"))
    return 0 if good else 1


def _check_positive(value: int, option: str) -> None:
    if value < 1:
        raise BadInput(f"{option} {value}: must be at least 1")
