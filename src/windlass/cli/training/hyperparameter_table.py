"""The effective hyperparameters as rows of a table, for a plan and for a run."""

from __future__ import annotations

from typing import Any

from windlass.spec.sync import Sync
from windlass.spec.units import format_count, format_seconds

SCALED = {
    "constant": "constant: the same batch for any number of replicas",
    "linear": "linear: batch and learning rate times the replicas",
    "sqrt": "sqrt: batch times the replicas, learning rate times their root",
}


def effective_rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Format `runs.run_status.effective_values` as rows of text."""
    workers, shares = values["workers"], values.get("replica_sequences")
    layout = ("layout", f"{values['layout']}, {workers} processes" if workers > 1 else values["layout"])
    if shares is None:  # a model that is not trained with gradients
        return [layout, ("steps", str(values["steps"]))]
    each = str(shares[0]) if len(set(shares)) == 1 else " and ".join(map(str, shares))
    rate = f"{values['learning_rate']:.3g} after {values['warmup_steps']} steps of warm-up"
    rows = [
        layout,
        ("steps", f"{values['steps']} of {values['batch_sequences']} sequences"),
        ("batch", f"{format_count(values['batch_tokens'])} tokens"),
        (
            "each replica",
            f"{each} sequences, {values['micro_batch_sequences']} at once",
        ),
        ("learning rate", rate),
    ]
    if values["replicas"] > 1:
        rows += [("scaling", SCALED[values["scaling"]]), ("sync", sync_words(Sync(**values["sync"])))]
    return rows


def sync_words(sync: Sync) -> str:
    """Describe a sync policy in a few words, with only the keys that apply to it."""
    match sync.policy:
        case "every-step":
            words = "gradients are added up at every step"
        case "local":
            words = f"weights are averaged every {sync.every} steps"
        case "timed":
            words = f"weights are averaged every {format_seconds(sync.seconds)}"
        case "diloco":
            words = (
                f"diloco every {sync.every} steps, outer rate {sync.outer_rate:g}"
                f" and momentum {sync.outer_momentum:g}"
            )
        case "server":
            ahead = f", at most {sync.staleness} batches ahead" if sync.mode == "bounded" else ""
            words = f"{sync.servers} parameter servers, {sync.mode}{ahead}"
    if sync.fragments > 1 or sync.delay:
        words += f", {sync.fragments} fragments, {sync.delay} steps of delay"
    return words if sync.compress == "none" else f"{words}, sent as {sync.compress}"
