"""`windlass control`: what `windlass jobs`, `models` and `plan` do, over HTTP, and the keys for it."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.operate.control_keys import Keys
from windlass.spec.errors import AskedWrongly

OWNER = "owner"
EPILOG = """\
The first start makes a key called 'owner' and prints it once. Only its digest is kept.

examples:
  windlass control                                     http://127.0.0.1:8100
  windlass control --new-key page --read-only          a key that may look and change nothing
  windlass control --list-keys
  windlass control --drop-key page
  curl -H 'authorization: Bearer KEY' http://127.0.0.1:8100/v1/jobs
  curl -H 'authorization: Bearer KEY' http://127.0.0.1:8100/v1/jobs/poems/1/set \\
       -d '{"changes": {"train.learning_rate": 0.0001}}'
  curl -H 'authorization: Bearer KEY' http://127.0.0.1:8100/v1/plan \\
       -d '{"job": {"train": {"tokens": "300B"}}, "sizes": "Llama-3.1-8B", "fleet": "64xH100-SXM5"}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8100, help="port to listen on; 0 takes a free one (default: 8100)"
    )
    keys = parser.add_argument_group("keys").add_mutually_exclusive_group()
    keys.add_argument("--new-key", metavar="NAME", help="make a key, print it, and end")
    keys.add_argument("--drop-key", metavar="NAME", help="make a key useless at once, and end")
    keys.add_argument("--list-keys", action="store_true", help="list the names of keys, and end")
    parser.add_argument("--read-only", action="store_true", help="with --new-key: it may change nothing")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    keys = Keys(home)
    if args.read_only and args.new_key is None:
        raise AskedWrongly("--read-only goes with --new-key NAME")
    if args.new_key is not None:
        _tell_key(
            args,
            args.new_key,
            keys.make(args.new_key, scopes=("read",) if args.read_only else ("read", "write")),
        )
    elif args.drop_key is not None:
        keys.drop(args.drop_key)
        print_json({"dropped": args.drop_key}) if args.json else print(f"key '{args.drop_key}' is gone")
    elif args.list_keys:
        _list(keys, as_json=args.json)
    else:
        _serve(args, home, keys)
    return 0


def _serve(args: argparse.Namespace, home: Path, keys: Keys) -> None:
    from windlass.operate.control_server import serve_control

    token = None if keys.list() else keys.make(OWNER)

    def listening(url: str, loopback: bool) -> None:
        if args.json:
            print_json({"url": url, "home": str(home), "key": token})
            return
        if token is not None:
            _tell_key(args, OWNER, token)
        if not loopback:
            print("note: others can reach this address, and keys travel unencrypted; put TLS in front of it")
        print(f"control API for {home} at {url} (Ctrl-C stops)", flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        serve_control(home, args.host, args.port, listening)


def _tell_key(args: argparse.Namespace, name: str, token: str) -> None:
    if args.json:
        print_json({"name": name, "key": token})
    else:
        print(f"key '{name}', shown only this once: {token}")


def _list(keys: Keys, *, as_json: bool) -> None:
    found = keys.list()
    if as_json:
        print_json([{"name": key.name, "scopes": list(key.scopes), "made": key.made} for key in found])
        return
    print_table([(key.name, " and ".join(key.scopes)) for key in found], ("key", "may"))
