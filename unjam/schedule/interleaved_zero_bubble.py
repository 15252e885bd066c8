"""Interleaved zero bubble: ZB-H1 on V chunks per rank.

Rank r runs ``(V-1)P + P-1-r`` lone forwards of interleaved 1F1B's table and keeps r weight
gradients pending, so that every rank holds P rank-stages [Qi et al. 2023; the order of
torch.distributed.pipelining's ScheduleInterleavedZeroBubble].

If P does not divide M, the order of the next larger multiple runs without the micro-batches that
are left over.
"""

from __future__ import annotations

from unjam.schedule.ir import Schedule
from unjam.schedule.tables import backward_table, forward_table, split_order, without_micro_batches


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Interleaved zero bubble of any P, V, M >= 1."""
    whole = -(-micro_batches // ranks) * ranks
    forwards = forward_table(ranks, chunks, whole)
    backwards = backward_table(forwards, chunks)
    orders = tuple(
        split_order(forwards, backwards, chunks * ranks - 1 - r, r) for r in range(ranks)
    )
    kept = tuple(without_micro_batches(x, (micro_batches,) * chunks) for x in orders)
    return Schedule("interleaved-zb", ranks, chunks, micro_batches, kept)
