"""Interleaved 1F1B: V chunks per rank shorten the bubble to ``(P-1)(F+B)/V``.

Rank r runs ``2(P-1-r) + (V-1)P`` lone forwards, then alternates [Narayanan et al. 2021, section
2.2]. Rank 0 holds ``P + (P-1)/V`` rank-stages of activations.
"""

from __future__ import annotations

from unjam.schedule.ir import Schedule
from unjam.schedule.one_f_one_b import one_f_one_b
from unjam.schedule.tables import alternating_order, backward_table, forward_table
from unjam.spec.errors import InputError


def interleaved(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Interleaved 1F1B of any P >= 1 and V >= 1; M must be a multiple of P (or V = 1).

    Raises:
        InputError: a last group smaller than P, which Megatron refuses too.
    """
    if chunks == 1:
        plain = one_f_one_b(ranks, micro_batches)
        return Schedule("interleaved", ranks, 1, micro_batches, plain.orders)
    if micro_batches % ranks:
        near = max(micro_batches // ranks, 1) * ranks
        raise InputError(
            f"interleaved schedule: {micro_batches} micro-batches are no multiple of the {ranks} "
            f"pipeline ranks; {near} or {near + ranks} would do"
        )
    total = micro_batches * chunks
    forwards = forward_table(ranks, chunks, micro_batches)
    backwards = backward_table(forwards, chunks)
    orders = tuple(
        alternating_order(
            forwards, backwards, min(2 * (ranks - 1 - r) + (chunks - 1) * ranks, total)
        )
        for r in range(ranks)
    )
    return Schedule("interleaved", ranks, chunks, micro_batches, orders)
