"""The angles of rotary positions, with every way to stretch them; without torch, so all runners share it.

Su et al. 2021, arXiv:2104.09864. Legend: T positions, R pairs that are rotated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.spec.model.decoder import DecoderShape, RopeScaling

Floats = NDArray[np.float32]


def rotary_tables(shape: DecoderShape, *, windowed: bool = False) -> tuple[Floats, Floats]:
    """Return cosines and sines (T, R) of all positions; `windowed`: of the layers with a window."""
    width = np.float32(shape.rotary_width)
    evens_R = np.arange(0, shape.rotary_width, 2, dtype=np.float32)
    speed_R = (1.0 / np.float32(theta_of(shape, windowed=windowed)) ** (evens_R / width)).astype(np.float32)
    speed_R, size = stretched(speed_R, shape, windowed=windowed)
    angles_TR = np.outer(np.arange(shape.context, dtype=np.float32), speed_R).astype(np.float32)
    return np.cos(angles_TR) * np.float32(size), np.sin(angles_TR) * np.float32(size)


def theta_of(shape: DecoderShape, *, windowed: bool) -> float:
    return shape.window_theta if windowed and shape.window_theta is not None else shape.rope_theta


def stretched(speed_R: Floats, shape: DecoderShape, *, windowed: bool) -> tuple[Floats, float]:
    """Return the angle per position of each pair, and what multiplies cosines and sines."""
    scaling = shape.rope_scaling
    if scaling is None or (windowed and shape.window_theta is not None):
        return speed_R, 1.0
    return _stretched(speed_R, scaling, shape), attention_factor(scaling)


def attention_factor(scaling: RopeScaling) -> float:
    """Return what multiplies cosines and sines, and so by its square the scores."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor <= 1:
        return 1.0
    if scaling.kind == "yarn":
        return 0.1 * math.log(scaling.factor) + 1.0
    if scaling.kind == "longrope":
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_context))
    return 1.0


def _stretched(speed_R: Floats, scaling: RopeScaling, shape: DecoderShape) -> Floats:
    match scaling.kind:
        case "linear":
            slower_R: NDArray[Any] = speed_R / np.float32(scaling.factor)
        case "llama3":
            slower_R = _by_wave_length(speed_R, scaling)
        case "yarn":
            slower_R = _by_parts(speed_R, scaling, shape)
        case "longrope":
            # Chosen once for a model, not by the length of a sequence: a token must not depend on its batch.
            beyond = shape.context > scaling.original_context
            factors_R = scaling.long_factors if beyond else scaling.short_factors
            slower_R = speed_R / np.asarray(factors_R, np.float32)
        case "dynamic":  # changes nothing up to the context of the model, which is the longest here
            slower_R = speed_R
    return slower_R.astype(np.float32)


def _by_wave_length(speed_R: Floats, scaling: RopeScaling) -> NDArray[Any]:
    """Slow down the waves that are long against the original context, as Llama 3.1 does.

    Short waves, which tell neighbours apart, keep their speed; those longer than the original context
    become `factor` times slower; between the two bounds the speed changes smoothly.
    """
    waves_R = scaling.original_context * speed_R / np.float32(2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept_R = np.clip((waves_R - scaling.low_freq_factor) / span, 0.0, 1.0)
    return speed_R * (kept_R + (1.0 - kept_R) / scaling.factor)


def _by_parts(speed_R: Floats, scaling: RopeScaling, shape: DecoderShape) -> NDArray[Any]:
    """YaRN: pairs that turn often within the original context keep their speed, others are slowed."""

    def pair_with(turns: float) -> float:
        width, theta = shape.rotary_width, shape.rope_theta
        return width * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, shape.rotary_width - 1)
    high += 0.001 if low == high else 0.0
    ramp_R = np.clip((np.arange(len(speed_R), dtype=np.float32) - low) / (high - low), 0.0, 1.0)
    return speed_R / scaling.factor * ramp_R + speed_R * (1 - ramp_R)
