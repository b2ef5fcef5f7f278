"""`windlass init`: write a commented job file to start from, or the JSON Schema for editors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from windlass.spec.errors import InUse
from windlass.spec.read import name_from
from windlass.spec.schema import SCHEMA_ID, job_schema, job_template
from windlass.store.store_dir import StoreDir

EPILOG = """\
examples:
  windlass init                       writes job.toml
  windlass init poems.toml
  windlass init --schema              prints the JSON Schema; name it in your editor, or in a first line
                                      "#:schema ./windlass-job.schema.json" of the job file
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "path", nargs="?", default="job.toml", type=Path, help="file to write (default: job.toml)"
    )
    parser.add_argument("--schema", action="store_true", help=f"print the JSON Schema ({SCHEMA_ID}) instead")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.schema:
        print(json.dumps(job_schema(), indent=2))
        return 0
    if args.path.exists() and not args.force:
        raise InUse(f"{args.path}: exists already", hint="give another name, or --force to overwrite it")
    StoreDir(args.path.absolute().parent).write(args.path.name, job_template(name_from(args.path)).encode())
    print(f"wrote {args.path}; edit it, then run: windlass train {args.path}")
    return 0
