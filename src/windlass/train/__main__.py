"""The doors of the processes that compute: `python -m windlass.train run|eval|tag|bench ...`.

Events go to standard output as JSON lines (see spec.door). SIGTERM and SIGINT end a run after its
current step, with a checkpoint.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.door import INTERRUPTED, DoorParser, emit, run_door
from windlass.spec.member import Member, add_member, member_of, settle
from windlass.spec.run import RUN_FILE, Run
from windlass.spec.shape import HmmShape, NgramShape, Shape
from windlass.store.place import Place

BENCHES = ("peers", "layouts", "sync", "asynchronous", "elastic", "hmm", "ngram")


def main(argv: list[str]) -> int:
    parser = DoorParser(prog="python -m windlass.train")
    doors = parser.add_subparsers(dest="door", required=True, parser_class=DoorParser)
    run = doors.add_parser("run")
    run.add_argument("folder", type=Path)
    add_member(run)
    measure = doors.add_parser("eval")
    measure.add_argument("model", type=Path)
    measure.add_argument("corpus", type=Path)
    measure.add_argument("--sequences", type=int)
    measure.add_argument("--context", type=int)
    measure.add_argument("--threads", type=int)
    tag = doors.add_parser("tag")
    tag.add_argument("model", type=Path)
    tag.add_argument("--text", type=Path)
    tag.add_argument("--listed", type=int, default=0)
    bench = doors.add_parser("bench")
    bench.add_argument("--repeats", type=int, default=5)
    bench.add_argument("--what", choices=BENCHES, default=BENCHES[0])
    bench.add_argument("--steps", type=int)
    args = parser.parse_args(argv)
    if args.door == "run":
        return _run(args.folder, member_of(args))
    if args.door == "eval":
        from windlass.train.measure import measure_model

        return measure_model(args.model, args.corpus, args.sequences, args.context, args.threads)
    emit({"done": _tagged(args) if args.door == "tag" else _bench(args)})
    return 0


def _tagged(args: argparse.Namespace) -> dict[str, Any]:
    from windlass.train.hidden.tagging import tag_text

    text = args.text.read_text(encoding="utf-8") if args.text is not None else None
    return tag_text(args.model, text, args.listed)


def _bench(args: argparse.Namespace) -> dict[str, Any]:
    if args.what == "layouts":
        from windlass.train.bench_layouts import bench_layouts

        return bench_layouts(args.repeats)
    if args.what == "sync":
        from windlass.train.bench_sync import bench_sync

        return bench_sync(args.steps) if args.steps else bench_sync()
    if args.what == "asynchronous":
        from windlass.train.bench_async import bench_async

        return bench_async()
    if args.what == "elastic":
        from windlass.train.bench_elastic import bench_elastic

        return bench_elastic(args.repeats)
    if args.what == "hmm":
        from windlass.train.hidden.bench import bench_hmm

        return bench_hmm(args.repeats)
    if args.what == "ngram":
        from windlass.train.counting.bench import bench_ngram

        return bench_ngram(args.repeats)
    from windlass.train.bench import bench_train

    return bench_train(args.repeats)


def _run(folder: Path, member: Member) -> int:
    from windlass.train.settings import StopAsked

    settle(member)
    shape = Run.model_validate_json(Place(folder).read(RUN_FILE)).shape
    asked_to_stop = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # A network takes requests of every kind, and this one with them.
    asked = StopAsked(folder) if isinstance(shape, NgramShape | HmmShape) else None

    def stopped() -> bool:
        return asked_to_stop or (asked is not None and asked())

    return 0 if _training(shape)(folder, stopped, member) else INTERRUPTED


def _training(shape: Shape) -> Callable[[Path, Callable[[], bool], Member | None], bool]:
    """Return what does a run of this family."""
    match shape:
        case NgramShape():
            from windlass.train.counting.run import train as count

            return count
        case HmmShape():
            from windlass.train.hidden.run import train as expect

            return expect
        case _:
            from windlass.train.loop import train

            return train


if __name__ == "__main__":
    run_door(main)
