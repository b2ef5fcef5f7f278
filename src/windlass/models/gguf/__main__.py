"""The process entry point of the package: `python -m windlass.models.gguf import FILE DIRECTORY` and back.

Input: a GGUF file, or a Hugging Face directory. Output: the other; one line of JSON on standard output,
{"done": ...} or {"error": ...}, and the exit code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.models.gguf.export_file import FILE_TYPES, export_gguf
from windlass.models.gguf.import_file import DTYPES, import_gguf
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint


def main(argv: list[str]) -> int:
    """Run one command; its output is one line of JSON."""
    args = _parser().parse_args(argv)
    if args.verb == "import":
        emit({"done": import_gguf(args.source, args.target, dtype=args.dtype)})
    else:
        emit({"done": export_gguf(args.source, args.target, args.type, args.pre)})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.models.gguf")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=EntrypointParser)
    command = verbs.add_parser("import", help="write a Hugging Face directory of a GGUF file")
    command.add_argument("source", type=Path)
    command.add_argument("target", type=Path)
    command.add_argument("--dtype", choices=DTYPES, default="auto", help="type of the written weights")
    command = verbs.add_parser("export", help="write a GGUF file of a model directory")
    command.add_argument("source", type=Path)
    command.add_argument("target", type=Path)
    command.add_argument("--type", choices=FILE_TYPES, default="f16", help="number format of the matrices")
    command.add_argument("--pre", help="pre-tokenizer to state where the model's own has no name")
    return parser


if __name__ == "__main__":
    run_entrypoint(main)
