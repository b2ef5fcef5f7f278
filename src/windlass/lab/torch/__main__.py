"""The entry point of the training benches: `python -m windlass.lab.torch --what WHAT`."""

from __future__ import annotations

import argparse
from typing import Any

from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint

BENCHES = ("peers", "layouts", "sync", "asynchronous", "elastic", "hmm", "ngram")


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.lab.torch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--what", choices=BENCHES, default=BENCHES[0])
    parser.add_argument("--steps", type=int)
    emit({"done": _bench(parser.parse_args(argv))})
    return 0


def _bench(args: argparse.Namespace) -> dict[str, Any]:
    if args.what == "layouts":
        from windlass.lab.torch.layouts_bench import bench_layouts

        return bench_layouts(args.repeats)
    if args.what == "sync":
        from windlass.lab.torch.sync_bench import bench_sync

        return bench_sync(args.steps) if args.steps else bench_sync()
    if args.what == "asynchronous":
        from windlass.lab.torch.async_bench import bench_async

        return bench_async()
    if args.what == "elastic":
        from windlass.lab.torch.elastic_bench import bench_elastic

        return bench_elastic(args.repeats)
    if args.what == "hmm":
        from windlass.lab.torch.hmm_bench import bench_hmm

        return bench_hmm(args.repeats)
    if args.what == "ngram":
        from windlass.lab.torch.ngram_bench import bench_ngram

        return bench_ngram(args.repeats)
    from windlass.lab.torch.train_bench import bench_train

    return bench_train(args.repeats)


if __name__ == "__main__":
    run_entrypoint(main)
