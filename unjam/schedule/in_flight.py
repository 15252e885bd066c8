"""Activations in flight: what a rank holds while each of its slots runs.

A rank runs its slots in order, so the curve follows from the order alone, not from the times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unjam.schedule.ir import IntArray, Kind, Schedule
from unjam.spec.compiled import compiled

FloatArray = npt.NDArray[np.float64]

_F, _B, _W, _FB = int(Kind.F), int(Kind.B), int(Kind.W), int(Kind.FB)


@compiled
def _held(slots: IntArray, offsets: IntArray, size: FloatArray) -> FloatArray:
    ranks = len(offsets) - 1
    out = np.empty(len(slots))
    for r in range(ranks):
        held = 0.0
        for i in range(offsets[r], offsets[r + 1]):
            kind = slots[i, 0]
            if kind in (_F, _FB):
                held += size[slots[i, 1] * ranks + r]
            out[i] = held
            if kind in (_B, _W):
                held -= size[slots[i, 1] * ranks + r]
            elif kind == _FB:
                held -= size[slots[i, 3] * ranks + r]
    return out


def _curves(schedule: Schedule, size: FloatArray) -> tuple[FloatArray, IntArray]:
    offsets = np.cumsum([0, *(len(x) for x in schedule.orders)]).astype(np.int32)
    slots = np.concatenate(schedule.orders)
    return _held(slots, offsets, np.asarray(size, dtype=np.float64)), offsets


def in_flight(schedule: Schedule, size: FloatArray) -> tuple[FloatArray, ...]:
    """What is held during each slot, per rank.

    A forward allocates at its start; a backward (its W where split) frees at its end.

    Args:
        schedule: the schedule.
        size: what one micro-batch leaves at each place, ``[P*V]``; any unit, such as bytes.
    """
    held, offsets = _curves(schedule, size)
    return tuple(np.split(held, offsets[1:-1]))


def peak_in_flight(schedule: Schedule, size: FloatArray) -> FloatArray:
    """Largest value of `in_flight` per rank, ``[P]``."""
    held, offsets = _curves(schedule, size)
    return np.maximum.reduceat(held, offsets[:-1])
