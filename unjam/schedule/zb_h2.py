"""ZB-H2: ZB-H1 with twice the forwards ahead, which closes the bubble for twice the memory.

    rank 0   F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 ..
    rank P-1          F0 I0 F1 I1 F2 I2 F3 ..        .. W W W

Rank r runs ``2(P-1-r)`` lone forwards and keeps 2r weight gradients pending, so that every rank
holds ``2P-1`` micro-batches [Qi et al. 2023, section 2.3]. Where F, I and W take the same time, no
rank waits between its first and its last pass.
"""

from __future__ import annotations

from unjam.schedule.ir import Schedule
from unjam.schedule.tables import backward_table, forward_table, split_order


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H2 of any P >= 1 and M >= 1."""
    forwards = forward_table(ranks, 1, micro_batches)
    backwards = backward_table(forwards, 1)
    orders = tuple(
        split_order(forwards, backwards, 2 * (ranks - 1 - r), 2 * r) for r in range(ranks)
    )
    return Schedule("zb-h2", ranks, 1, micro_batches, orders)
