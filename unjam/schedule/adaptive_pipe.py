"""Adaptive Pipe: interleaved 1F1B whose forwards and backwards run as pairs.

    rank r  F F .. F  F&B F&B .. F&B  B B .. B
            w_r lone   pairs          w_r lone

``w_r = min(2(P-1-r) + (V-1)P + 1, MV)``: one more lone forward than interleaved 1F1B, because a
pair must have both inputs when it starts; without it pairs wait for each other. In a pair the
forward's communication hides behind the backward's computation and the other way round. Rank 0
holds ``P(1 + 1/V)`` rank-stages of activations; weights are held once.

If P does not divide M, the last group holds ``G = P + M % P`` micro-batches and the count of lone
forwards follows the larger group: ``w_r = min(2(P-1-r) + (V-1)G + 1, MV)``.
"""

from __future__ import annotations

from unjam.schedule.ir import Schedule
from unjam.schedule.tables import backward_table, forward_table, paired_order


def adaptive_pipe(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Adaptive Pipe of any P, V, M >= 1."""
    total = micro_batches * chunks
    forwards = forward_table(ranks, chunks, micro_batches)
    backwards = backward_table(forwards, chunks)
    group = ranks + micro_batches % ranks if micro_batches > ranks else ranks
    orders = []
    for r in range(ranks):
        lone = 2 * (ranks - 1 - r) + (chunks - 1) * group + 1
        orders.append(paired_order(forwards, backwards, min(lone, total)))
    return Schedule("adaptive", ranks, chunks, micro_batches, tuple(orders))
