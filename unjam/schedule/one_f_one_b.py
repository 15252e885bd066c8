"""1F1B: each rank alternates one forward with one backward once its pipeline is full.

    rank 0  F0 F1 F2 F3 B0 .. F4 B1 ..
    rank 1     F0 F1 F2 B0 F3 B1 F4 ..

[Narayanan et al. 2019, PipeDream-flush.] Bubble ``(P-1)(F+B)`` per rank, P micro-batches in flight
on rank 0.
"""

from __future__ import annotations

from unjam.schedule.ir import Schedule
from unjam.schedule.tables import alternating_order, backward_table, forward_table


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """1F1B of any P >= 1 and M >= 1."""
    forwards = forward_table(ranks, 1, micro_batches)
    backwards = backward_table(forwards, 1)
    orders = tuple(
        alternating_order(forwards, backwards, min(ranks - 1 - r, micro_batches))
        for r in range(ranks)
    )
    return Schedule("1f1b", ranks, 1, micro_batches, orders)
