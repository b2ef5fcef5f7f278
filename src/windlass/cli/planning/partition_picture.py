"""Draws a partition: one row per pipeline process, with its layers, its share of the work and its memory.

process  layers           work                            weights  memory
0        embedding 0-4    ##########.........  52%        6M       91.6 MiB
1        5-7 head         #########..........  48%        4.23M    64.5 MiB
"""

from __future__ import annotations

from typing import Any

from windlass.cli.terminal import print_table
from windlass.spec.layout import Layout, Partition, StageSlice
from windlass.spec.run import Run
from windlass.spec.units import format_bytes, format_count

BAR = 24


def draw_cut(run: Run, found: dict[str, Any]) -> None:
    """Print the result of `runs.show_partition.describe_partition`."""
    layout, shape, cut = run.layout, run.network, Partition.model_validate(found["cut"])
    print(f"{shape.family}, {format_count(shape.parameters)} weights, {shape.layers} layers on {layout}")
    print()
    rows = [_row(position, cut, found) for position in range(layout.pp)]
    print_table(rows, ("process", "layers", "time", "weights", "memory"))
    print()
    for line in _notes(layout, cut, found):
        print(f"- {line}")


def _row(position: int, cut: Partition, found: dict[str, Any]) -> tuple[str, ...]:
    loads = found["loads"]
    return (
        str(position),
        " | ".join(_stage(piece) for piece in cut.at(position)),
        f"{_bar(loads[position] / max(loads))} {loads[position] / sum(loads):4.0%}",
        format_count(found["weights"][position]),
        format_bytes(found["state_bytes"][position]),
    )


def _stage(piece: StageSlice) -> str:
    layers = str(piece.first) if piece.until == piece.first + 1 else f"{piece.first}-{piece.until - 1}"
    return " ".join(filter(None, ("embedding" * piece.embedding, layers, "head" * piece.head)))


def _bar(share: float) -> str:
    filled = round(BAR * share)
    return "#" * filled + "." * (BAR - filled)


def _notes(layout: Layout, cut: Partition, found: dict[str, Any]) -> list[str]:
    each = layout.world // layout.pp
    uneven = found["unevenness"]
    notes = [f"cut: {cut.how}"]
    if each > 1:
        notes.append(f"each row is {each} processes: {_block(layout)}")
    if layout.pp > 1:
        notes.append(
            f"the slowest process needs {uneven['this']:.2f} of an even share;"
            f" balanced {uneven['balanced']:.2f}, fixed {uneven['fixed']:.2f}"
        )
        notes.append(
            f"schedule {layout.schedule} idles {found['bubble']:.1%} of a step in theory"
            f" (micro-batches: {found['micro_batches']})"
        )
    if cut.features:
        notes += [f"tp divides by {by}: {kinds}" for by, kinds in _divided(cut).items()]
    notes.append("memory covers weights, gradients and Adam's moments, without activations")
    return notes


def _block(layout: Layout) -> str:
    axes = ("dp", "sharded", "cp", "tp")
    return " x ".join(f"{axis} {getattr(layout, axis)}" for axis in axes if getattr(layout, axis) > 1)


def _divided(cut: Partition) -> dict[str, str]:
    """Name the divided weights by the dimension that is divided; a bias belongs to its matrix."""
    groups: dict[str, list[str]] = {"words": [], "outputs": [], "inputs": []}
    for kind, dimension in cut.features.items():
        name, _, part = kind.rpartition(".")
        by = "words" if name in ("embedding", "head") else ("outputs", "inputs")[dimension]
        if part == "weight":
            groups[by].append(name)
    return {by: ", ".join(names) for by, names in groups.items()}
