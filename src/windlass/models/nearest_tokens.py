"""Nearest tokens by the cosine of their vectors: `python -m windlass.models.nearest_tokens MODEL ID`.

Input: a model directory and the number of a token. Output: one line of JSON on standard output, the numbers
of the nearest tokens with their cosines. Any model with an embedding has them; torch is not loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windlass.models.weights import load_weights
from windlass.spec.errors import BadInput
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint


def nearest(
    vectors_VD: NDArray[np.float32], token: int, count: int, but: Collection[int] = ()
) -> list[tuple[int, float]]:
    """Return the nearest tokens, nearest first; zero vectors are near to no token."""
    lengths_V = np.linalg.norm(vectors_VD, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines_V = vectors_VD @ vectors_VD[token] / (lengths_V * lengths_V[token])
    cosines_V[[token, *but]] = np.nan
    order = np.argsort(-cosines_V, kind="stable")[:count]
    return [(int(n), round(float(cosines_V[n]), 6)) for n in order if np.isfinite(cosines_V[n])]


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.models.nearest_tokens")
    parser.add_argument("model", type=Path)
    parser.add_argument("token", type=int)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--but", default="", help="tokens to leave out")
    args = parser.parse_args(argv)
    vectors_VD = load_weights(args.model).get("embedding.weight").widened()
    if not 0 <= args.token < len(vectors_VD):
        raise BadInput(f"{args.model}: there is no token {args.token}; they are 0 to {len(vectors_VD) - 1}")
    but = [number for number in map(int, filter(None, args.but.split(","))) if number < len(vectors_VD)]
    emit({"done": {"near": nearest(vectors_VD, args.token, args.count, but)}})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
