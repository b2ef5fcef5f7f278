"""A load generator with a gateway's quota client, without HTTP: it takes rate, daily tokens and permits.

It starts at the Unix time given on standard input. It prints "ready", then one unbuffered line per event, so
that a killed process has printed all it did: TIME "requests" AMOUNT, TIME "tokens" AMOUNT once they are
settled, TIME "permits" +1 or -1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time

from windlass.serve.gateway.limits.quota_client import HeldQuota, QuotaClient, QuotaExceeded, QuotaShare
from windlass.serve.records.bucket import Kind, rules_of
from windlass.serve.records.quotas import ALL, QUOTAS, Name
from windlass.spec.limits import Limits
from windlass.spec.processes import QUOTA_LOAD
from windlass.spec.protocol.entrypoint import EntrypointParser, run_entrypoint
from windlass.store.database import open_database

MAX_TOKENS = 40
HOLD_S = 0.05
READY = b"ready\n"
KINDS: tuple[Kind, ...] = ("requests", "tokens_day", "concurrent")


def main(argv: list[str]) -> int:
    args = _parse(argv)
    asyncio.run(generate_load(args))
    return 0


async def generate_load(args: argparse.Namespace) -> None:
    """Send requests at a steady rate far above the limits, from several callers; each takes one kind."""
    database = open_database(args.state, [QUOTAS])
    client = QuotaClient(database, f"generate_load-{args.number}")
    rules = rules_of(Limits.model_validate_json(args.limits))
    running = asyncio.create_task(client.run())
    rng = random.Random(args.number)
    os.write(1, READY)
    begin = float(sys.stdin.readline())
    await asyncio.sleep(begin - time.time())
    until = begin + args.seconds
    callers = [
        _call(client, QuotaShare(Name(ALL, kind), rules[kind], 1), rng, until, args.rate) for kind in KINDS
    ]
    await asyncio.gather(*callers)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    database.close()


async def _call(client: QuotaClient, part: QuotaShare, rng: random.Random, until: float, rate: float) -> None:
    open_: set[asyncio.Task[None]] = set()
    while time.time() < until:
        amount = rng.randint(1, MAX_TOKENS) if part.name.kind == "tokens_day" else 1
        try:
            (taken,) = await client.take([QuotaShare(part.name, part.rule, amount)])
        except QuotaExceeded:
            pass
        else:
            task = asyncio.create_task(_use(taken, rng))
            open_.add(task)
            task.add_done_callback(open_.discard)
        await asyncio.sleep(rng.expovariate(rate))
    await asyncio.gather(*open_)


async def _use(taken: HeldQuota, rng: random.Random) -> None:
    """Use the quota as a request does; tokens count from when they were taken."""
    kind, amount, at = taken.part.name.kind, int(taken.part.amount), time.time()
    if kind == "requests":
        taken.settle(1)
        _print_event(at, "requests", 1)
    elif kind == "tokens_day":
        spent = rng.randint(0, amount)
        await asyncio.sleep(rng.uniform(0, HOLD_S))
        _print_event(at, "tokens", spent)
        taken.settle(spent)
    else:
        _print_event(at, "permits", 1)
        await asyncio.sleep(rng.uniform(0, 2 * HOLD_S))
        _print_event(time.time(), "permits", -1)
        taken.settle(0)


def _print_event(at: float, what: str, amount: int) -> None:
    os.write(1, f"{at:.6f} {what} {amount}\n".encode())


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog=QUOTA_LOAD, description="Take as much quota as possible.")
    parser.add_argument("--state", required=True)
    parser.add_argument("--limits", required=True, help="the table, as JSON")
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, required=True, help="requests of each kind per second")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
