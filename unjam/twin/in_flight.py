"""Activations in flight: what a rank holds while each of its slots runs.

A rank runs its slots in order, so the curve follows from the order alone, not from the times.
"""

from __future__ import annotations

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.schedule.ir import IntArray, Kind, Schedule
from unjam.twin.compiled import compiled
from unjam.twin.graph import OffsetArray, slot_graph

_F, _B, _W, _FB = int(Kind.F), int(Kind.B), int(Kind.W), int(Kind.FB)


@compiled
def _held(slots: IntArray, offsets: OffsetArray, size: FloatArray) -> FloatArray:
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


def in_flight(schedule: Schedule, bytes_per_pass: FloatArray) -> tuple[FloatArray, ...]:
    """Bytes held during each slot, per rank.

    A forward allocates at its start; a backward (its W where split) frees at its end.

    Args:
        schedule: the schedule.
        bytes_per_pass: bytes that one micro-batch leaves in each stage, ``[P*V]``.
    """
    graph = slot_graph(schedule)
    held = _held(graph.slots, graph.offsets, np.asarray(bytes_per_pass, dtype=np.float64))
    return tuple(np.split(held, graph.offsets[1:-1]))


def peak_in_flight(schedule: Schedule, bytes_per_pass: FloatArray) -> FloatArray:
    """Largest value of `in_flight` per rank, ``[P]``."""
    graph = slot_graph(schedule)
    held = _held(graph.slots, graph.offsets, np.asarray(bytes_per_pass, dtype=np.float64))
    return np.maximum.reduceat(held, graph.offsets[:-1])
