"""DualPipe: two copies of the model run in opposite directions, and their passes are paired.

    rank 0    a0 a1 a2 a3   a4 A0   ..  a5&A1 A2&a1 ..   .. A B a ..
    rank P-1  A0 A1 A2 A3   A4 a0   ..  A5&a1 a2&A1 ..

(a: micro-batches that enter at rank 0; A: those that enter at rank P-1.) All communication of a
pair hides behind the other half's computation [DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1].
Bubble ``(P/2-1)(F&B + B - 3W)``; every rank holds up to ``P+1`` rank-stages and two copies of the
weights.

P must be even. An odd M, or one below 2P, runs in the order of the next larger even one without the
micro-batches that are left over.
"""

from __future__ import annotations

from unjam.schedule.dual_pipe_v import dual_steps
from unjam.schedule.ir import Placement, Schedule
from unjam.schedule.tables import without_micro_batches
from unjam.spec.errors import InputError


def dual_pipe(ranks: int, micro_batches: int) -> Schedule:
    """DualPipe of any even P >= 2 and any M >= 1.

    Raises:
        InputError: P is odd.
    """
    if ranks % 2:
        raise InputError(
            f"dualpipe schedule: {ranks} pipeline ranks: must be even; dualpipe-v takes any number"
        )
    many = max((micro_batches + 1) // 2, ranks)  # micro-batches of each direction
    half = (micro_batches + 1) // 2
    kept = (half, micro_batches - half)
    orders = []
    for rank in range(ranks):
        chunks = (0, 1) if rank < ranks // 2 else (1, 0)
        inner = min(rank, ranks - 1 - rank) + 1
        order = dual_steps(chunks, ranks // 2 - inner, inner, many - ranks + inner)
        order = without_micro_batches(order, kept)
        order[:, 2] += half * (order[:, 1] == 1)
        order[:, 4] += half * (order[:, 3] == 1)
        orders.append(order)
    placement = Placement.BIDIRECTIONAL
    return Schedule("dualpipe", ranks, 2, micro_batches, tuple(orders), placement)
