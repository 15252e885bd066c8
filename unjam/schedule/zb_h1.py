"""ZB-H1: 1F1B whose weight gradients wait until nothing else can run, in the memory of 1F1B.

    rank 0   F0 F1 F2 F3          I0 W0 F4 I1 W1 ..
    rank P-1          F0 I0 F1 I1 F2 I2 F3 I3 W0 ..

Rank r runs ``P-1-r`` lone forwards and keeps r weight gradients pending, so that every rank holds P
micro-batches [Qi et al. 2023, section 2.3]. Bubble ``(P-1)(F+I-W)``.
"""

from __future__ import annotations

from unjam.schedule.ir import Schedule
from unjam.schedule.tables import backward_table, forward_table, split_order


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1 of any P >= 1 and M >= 1."""
    forwards = forward_table(ranks, 1, micro_batches)
    backwards = backward_table(forwards, 1)
    orders = tuple(split_order(forwards, backwards, ranks - 1 - r, r) for r in range(ranks))
    return Schedule("zb-h1", ranks, 1, micro_batches, orders)
