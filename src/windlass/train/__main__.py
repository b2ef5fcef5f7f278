"""The entry point of processes that train or evaluate: `python -m windlass.train run|eval|tag ...`.

Events go to standard output as JSON lines (see spec.protocol.entrypoint). SIGTERM and SIGINT end a run after
its current step, with a checkpoint.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.spec.protocol.entrypoint import INTERRUPTED, EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.rank import RankInfo, add_member, apply_affinity, member_of
from windlass.spec.run import RUN_FILE, Run
from windlass.spec.shape import HmmShape, NgramShape, Shape
from windlass.store.store_dir import StoreDir


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.train")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=EntrypointParser)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    add_member(run)
    measure = commands.add_parser("eval")
    measure.add_argument("model", type=Path)
    measure.add_argument("corpus", type=Path)
    measure.add_argument("--sequences", type=int)
    measure.add_argument("--context", type=int)
    measure.add_argument("--threads", type=int)
    tag = commands.add_parser("tag")
    tag.add_argument("model", type=Path)
    tag.add_argument("--text", type=Path)
    tag.add_argument("--listed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.command == "run":
        return _run(args.folder, member_of(args))
    if args.command == "eval":
        from windlass.train.evaluate_model import measure_model

        return measure_model(args.model, args.corpus, args.sequences, args.context, args.threads)
    emit({"done": _tagged(args)})
    return 0


def _tagged(args: argparse.Namespace) -> dict[str, Any]:
    from windlass.train.hmm.tagging import tag_text

    text = args.text.read_text(encoding="utf-8") if args.text is not None else None
    return tag_text(args.model, text, args.listed)


def _run(folder: Path, member: RankInfo) -> int:
    from windlass.train.runtime_settings import StopRequested

    apply_affinity(member)
    shape = Run.model_validate_json(StoreDir(folder).read(RUN_FILE)).shape
    stop_signalled = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stop_signalled
        stop_signalled = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # Networks handle stop requests with their other runtime settings.
    stop_requested = StopRequested(folder) if isinstance(shape, NgramShape | HmmShape) else None

    def stopped() -> bool:
        return stop_signalled or (stop_requested is not None and stop_requested())

    return 0 if _training(shape)(folder, stopped, member) else INTERRUPTED


def _training(shape: Shape) -> Callable[[Path, Callable[[], bool], RankInfo | None], bool]:
    """Return the training function of a model family."""
    match shape:
        case NgramShape():
            from windlass.train.ngram.run import train as count

            return count
        case HmmShape():
            from windlass.train.hmm.run import train as expect

            return expect
        case _:
            from windlass.train.loop import train

            return train


if __name__ == "__main__":
    run_entrypoint(main)
