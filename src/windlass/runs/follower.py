"""Turns the events of a training process into a progress line and a few permanent lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.runs.progress_line import ProgressLine
from windlass.spec.protocol.progress import Progress
from windlass.spec.units import format_count

SHOWN_CHARS = 200
WORDS = {"loss": "loss", "tokens_per_s": "tok/s", "share_of_peak": "peak"}


class Follower:
    """Prints the events of a run. `evaluation` and `finished` hold the last event of each kind."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self.evaluation: dict[str, Any] = {}
        self.finished: dict[str, Any] = {}
        self.sample = ""
        self.stopped_at: int | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler is not None:
            handler(event)

    def _on_started(self, event: dict[str, Any]) -> None:
        compiled = ", compiled" if event["compile"] else ""
        world = event.get("workers", 1)
        processes = f", {world} processes ({event['layout']})" if world > 1 else ""
        if "servers" in event:
            processes = f", {world} workers and {event['servers']} servers ({event['mode']})"
        each = " each" if world > 1 else ""
        weights = event["parameters"]
        what = f"training {format_count(weights)} weights" if weights else "counting"
        self._line.say(
            f"{what} for {event['steps']} steps"
            f" on {event['device']}{processes}, {event['threads']} threads{each}{compiled}"
        )

    def _on_resumed(self, event: dict[str, Any]) -> None:
        self._line.say(f"resuming from step {event['step']}")

    def _on_vectors(self, event: dict[str, Any]) -> None:
        self._line.say(
            f"vectors, pass {event['epoch']} of {event['epochs']}: loss {event['loss']:.4f},"
            f" {format_count(event['pairs'])} pairs"
        )

    def _on_vectors_resumed(self, event: dict[str, Any]) -> None:
        self._line.say(f"vectors: resuming after {event['epoch']} passes and {event['position']} tokens")

    def _on_replanned(self, event: dict[str, Any]) -> None:
        self._line.say(
            f"measured at step {event['step']}: {event['steps']} steps fit, not {event['steps_before']}"
        )

    def _on_step(self, event: dict[str, Any]) -> None:
        shown: dict[str, Callable[[float], str]] = {
            "loss": lambda loss: f"{loss:.3f}",
            "tokens_per_s": lambda speed: format_count(round(speed)),
            "share_of_peak": lambda share: f"{share:.0%}",
        }
        note = {
            WORDS[key]: say(event[key]) for key, say in shown.items() if event.get(key) is not None
        }  # a stage of counting has no loss
        self._line(Progress("train", event["step"], event["steps"], "steps", note))

    def _on_progress(self, event: dict[str, Any]) -> None:
        self._line(Progress(event["stage"], event["done"], event["total"], event["unit"]))

    def _on_evaluation(self, event: dict[str, Any]) -> None:
        self.evaluation = event
        self._line.say(
            f"step {event['step']}: validation loss {event['loss']:.4f},"
            f" perplexity {event['perplexity']:.2f}, {event['bits_per_byte']:.3f} bits per byte"
        )

    def _on_sample(self, event: dict[str, Any]) -> None:
        self.sample = event["text"]
        shown = " ".join(event["text"].split())
        self._line.say(f"  sample: {shown[:SHOWN_CHARS]}")

    def _on_warning(self, event: dict[str, Any]) -> None:
        self._line.say(f"warning: {event['message']}")

    def _on_restarted(self, event: dict[str, Any]) -> None:
        self._line.say(
            f"warning: {event['message']}; starting again from step {event['step']},"
            f" restarts left: {event['restarts_left']}"
        )

    def _on_generation(self, event: dict[str, Any]) -> None:
        count = len(event["members"])
        self._line.say(f"generation {event['generation']}, {count} workers: {event['reason']}")

    def _on_lost(self, event: dict[str, Any]) -> None:
        self._line.say(f"warning: lost {event['worker']}: {event['detail']}")

    def _on_replaced(self, event: dict[str, Any]) -> None:
        self._line.say(f"warning: {event['message']}; starting a replacement")

    def _on_scaled(self, event: dict[str, Any]) -> None:
        self._line.say(f"{event['workers']} workers requested")

    def _on_waiting(self, event: dict[str, Any]) -> None:
        self._line.say(f"waiting: {event['reason']}")

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self.stopped_at = event["step"]

    def _on_finished(self, event: dict[str, Any]) -> None:
        self.finished = event
