"""The weights that an engine computes with, as the files hold them; nothing here loads torch."""

from __future__ import annotations

from windlass.models.weights import Float, Grouped, Weights, load_weights

__all__ = ["Float", "Grouped", "Weights", "load_weights"]
