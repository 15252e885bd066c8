"""Tables of passes that the generators cut into orders.

A schedule of a kind is a list of forwards and a list of backwards, both the same on every rank,
and the number of lone forwards that a rank runs before it alternates.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from unjam.schedule.ir import IntArray, Kind


def forward_table(ranks: int, chunks: int, micro_batches: int) -> IntArray:
    """Forwards in order, ``[M*V, 2]`` of chunk and micro-batch.

    Groups of P micro-batches; in a group chunk after chunk; in a chunk one micro-batch after the
    other [Narayanan et al. 2021, interleaved 1F1B]. What is left over joins the last group: in a
    group smaller than P, chunks would follow each other faster than the pipeline is deep.
    """
    whole = max(micro_batches // ranks, 1)
    edges = [ranks * i for i in range(whole)] + [micro_batches]
    rows = []
    for first, after in pairwise(edges):
        members = np.arange(first, after)
        chunk = np.repeat(np.arange(chunks), len(members))
        rows.append(np.stack([chunk, np.tile(members, chunks)], axis=1))
    return np.concatenate(rows).astype(np.int32)


def backward_table(forwards: IntArray, chunks: int) -> IntArray:
    """Backwards in order: the forwards with the chunks counted from the last."""
    out = forwards.copy()
    out[:, 0] = chunks - 1 - out[:, 0]
    return out


def _slots(kind: Kind, passes: IntArray) -> IntArray:
    out = np.full((len(passes), 5), -1, dtype=np.int32)
    out[:, 0] = kind
    out[:, 1:3] = passes
    return out


def alternating_order(forwards: IntArray, backwards: IntArray, lone: int) -> IntArray:
    """`lone` forwards, then forward and backward by turns, then the backwards that are left."""
    pairs = len(forwards) - lone
    middle = np.empty((2 * pairs, 5), dtype=np.int32)
    middle[0::2] = _slots(Kind.F, forwards[lone:])
    middle[1::2] = _slots(Kind.B, backwards[:pairs])
    return np.concatenate(
        [_slots(Kind.F, forwards[:lone]), middle, _slots(Kind.B, backwards[pairs:])]
    )


def paired_order(forwards: IntArray, backwards: IntArray, lone: int) -> IntArray:
    """`lone` forwards, then pairs of a forward with a backward, then lone backwards."""
    pairs = len(forwards) - lone
    middle = _slots(Kind.FB, forwards[lone:])
    middle[:, 3:5] = backwards[:pairs]
    return np.concatenate(
        [_slots(Kind.F, forwards[:lone]), middle, _slots(Kind.B, backwards[pairs:])]
    )
