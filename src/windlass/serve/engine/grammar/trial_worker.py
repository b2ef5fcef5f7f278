"""The trial process of grammars: `python -m windlass.serve.engine.grammar.trial_worker`.

The engine sends one JSON object a line, {"kind", "text"}; the reply is {"reason": null or why not}. The
grammar is compiled and walked for some steps under a memory limit. The engine watches the time and kills
this process if it takes too long. A grammar that passes here is then compiled in the engine.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from windlass.serve.engine.grammar.compile_grammar import (
    BadGrammar,
    compile_grammar,
    load_vocabulary,
    reason_of,
)
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.wire import Grammar

MAX_DATA_BYTES = 1 << 30
TRIAL_STEPS = 48
NICENESS = 5


def main(argv: list[str]) -> int:
    """Answer until standard input ends."""
    args = _parser().parse_args(argv)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    vocabulary = load_vocabulary(args.model, args.vocabulary, args.stop)
    emit({"ready": True})
    for line in sys.stdin.buffer:
        emit({"reason": why_not(vocabulary, msgspec.json.decode(line, type=Grammar))})
    return 0


def why_not(vocabulary: LLTokenizer, grammar: Grammar) -> str | None:
    """Return what is wrong with a grammar, or None."""
    try:
        return _walk(compile_grammar(vocabulary, grammar))
    except BadGrammar as error:
        return error.message


def _walk(matcher: LLMatcher) -> str | None:
    """Take steps by allowed tokens, a different part of them each time, so that large automata show."""
    for step in range(TRIAL_STEPS):
        allowed = np.flatnonzero(
            np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        )
        if matcher.is_error():
            return reason_of(matcher)
        if not len(allowed):
            return None
        matcher.consume_token(int(allowed[(step * 7919) % len(allowed)]))
        if matcher.is_stopped():
            return reason_of(matcher) if matcher.is_error() else None
    return None


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.serve.engine.grammar.trial_worker")
    parser.add_argument("--model", type=Path, required=True, help="directory with tokenizer.json")
    parser.add_argument("--vocabulary", type=int, required=True, help="size of the model's vocabulary")
    parser.add_argument("--stop", type=int, nargs="*", default=[], help="tokens that end an answer")
    return parser


if __name__ == "__main__":
    run_entrypoint(main)
