"""ZBV: two chunks per rank in a V, zero bubble in the memory of 1F1B.

    rank 0   a a a a a a a  A I W  A I W  A I W  A I W  a i w A I W ..
    rank P-1       a  A a A a A a  A I W  a i w A I W ..

(a, i, w: first chunk; A, I, W: second.) Rank 0 runs the first and the last stage, so a gradient
turns round there without a bubble; every rank holds P rank-stages [Qi et al. 2023, section 6].
Where F, I and W take the same time, no rank waits between its first and its last pass.

Less than ``2P-1`` micro-batches run in the order of ``2P-1`` without those that are left over.
"""

from __future__ import annotations

from unjam.schedule.ir import IntArray, Placement, Schedule
from unjam.schedule.steps import Steps
from unjam.schedule.tables import without_micro_batches


def zbv(ranks: int, micro_batches: int) -> Schedule:
    """ZBV of any P >= 1 and M >= 1."""
    many = max(micro_batches, 2 * ranks - 1)
    orders = tuple(
        without_micro_batches(_order(ranks, r, many), (micro_batches,) * 2) for r in range(ranks)
    )
    return Schedule("zbv", ranks, 2, micro_batches, orders, Placement.V)


def _order(ranks: int, rank: int, micro_batches: int) -> IntArray:
    s = Steps(2)
    for _ in range(2 * (ranks - rank) - 1):
        s.forward(0)
    for _ in range(rank):
        s.forward(1)
        s.forward(0)
    for _ in range(ranks - rank):
        s.forward(1)
        s.input_gradient(1)
        s.weight_gradient(1)
    while s.forwards(1) < micro_batches:
        if s.forwards(0) < micro_batches:
            s.forward(0)
        s.input_gradient(0)
        s.weight_gradient(0)
        s.forward(1)
        s.input_gradient(1)
        s.weight_gradient(1)
    for _ in range(rank):
        s.input_gradient(0)
        s.input_gradient(1)
    for _ in range(ranks - rank):
        s.input_gradient(0)
        s.weight_gradient(0)
    for chunk in (1, 0):
        for _ in range(ranks):
            s.weight_gradient(chunk)
    return s.order()
