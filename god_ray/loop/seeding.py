"""Random numbers without a state to save: every leaf seeds every generator from (seed, step, lane).

In: the run's seed and the place of a leaf. Out: seeded torch, numpy and `random`. A model that keeps a
generator of its own escapes this; `check` finds it, because it runs a leaf twice.
"""

from __future__ import annotations

import random

import numpy as np
import torch

_MASK = (1 << 64) - 1
BUILD, TRAIN, EVALUATE = 1, 2, 3


def mix(*parts: int) -> int:
    """64 well-mixed bits of a few integers (splitmix64, Steele et al. 2014, as a running hash)."""
    value = 0
    for part in parts:
        value = (value ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return value


def seed_generators(purpose: int, seed: int, step: int = 0, lane: int = 0) -> None:
    """Seed all generators for one leaf (or for building the model: purpose BUILD)."""
    value = mix(purpose, seed, step, lane)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)
