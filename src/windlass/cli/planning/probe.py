"""`windlass probe`: measure this machine, so that plans fit it."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.plan.local.profile import ProbeSetting, Profile, save_profile
from windlass.runs.planning.probe import probe
from windlass.runs.progress_line import ProgressLine
from windlass.spec.units import format_bytes, format_seconds

EPILOG = """\
Measures matrix products, attention, memory, training steps, communication between processes, disk and
start-up; on one core, on all, and with a process on each. `plan`, `train` and `plan verify` use the profile
that it writes, HOME/profile.json (docs/formats/profile.md), as long as the machine and torch stay the same.

examples:
  windlass probe               under three minutes; best on an idle machine
  windlass probe --quick       a rough profile
  windlass probe --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--quick", action="store_true", help="measure less, in about half the time")
    parser.add_argument("--json", action="store_true", help="print the whole profile as JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    line, home = ProgressLine(quiet=args.json), home_of(args)
    found = probe(home, line, quick=args.quick)
    path = save_profile(found, home)
    line.close()
    if args.json:
        print_json(found.model_dump(mode="json"))
    else:
        _print_profile(found)
        print(f"profile: {path}")
    return 0


def _print_profile(profile: Profile) -> None:
    rows = [_row(setting) for setting in profile.settings]
    print_table(rows, ("processes x threads", "products", "memory", "update", "sum of 4 MiB"))
    print(f"{profile.machine}, {profile.cores} cores")
    print(
        f"disk: writes {format_bytes(profile.write_bytes_s)}/s, reads {format_bytes(profile.read_bytes_s)}/s,"
        f" an fsync takes {format_seconds(profile.fsync_s)}; a process starts in"
        f" {format_seconds(profile.start_s)} and holds {format_bytes(profile.held[0].peak_bytes)}"
    )


def _row(setting: ProbeSetting) -> tuple[str, ...]:
    """Return the best figure of each kind for one process."""
    flops = max(2.0 * p.tokens * p.inputs * p.outputs / p.forward_s for p in setting.products)
    stream, update = setting.streams[-1], setting.updates[-1]
    sums = [e.seconds for e in setting.exchanges if e.kind == "sum" and e.bytes == 4 << 20]
    return (
        f"{setting.processes} x {setting.threads}",
        f"{flops / 1e9:.0f} GFLOP/s",
        f"{format_bytes(12 * stream.values / stream.seconds)}/s",
        f"{update.weights / update.seconds / 1e6:.0f}M weights/s",
        f"{1000 * sums[0]:.1f} ms" if sums else "-",
    )
