"""Tables of passes that the generators cut into orders.

A schedule of a kind is a list of forwards and a list of backwards, both the same on every rank,
and the number of lone forwards that a rank runs before it alternates.

A generator may also make more micro-batches than there are and drop those left over: whatever
waits for a pass belongs to the same micro-batch, so the rest still runs.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def slots(kind: Kind, passes: IntArray) -> IntArray:
    """Lone passes, ``[n, 2]`` of chunk and micro-batch, as slots ``[n, 5]``."""
    out = np.full((len(passes), 5), -1, dtype=np.int32)
    out[:, 0] = kind
    out[:, 1:3] = passes
    return out


def alternating_order(forwards: IntArray, backwards: IntArray, lone: int) -> IntArray:
    """`lone` forwards, then forward and backward by turns, then the backwards that are left."""
    pairs = len(forwards) - lone
    middle = np.empty((2 * pairs, 5), dtype=np.int32)
    middle[0::2] = slots(Kind.F, forwards[lone:])
    middle[1::2] = slots(Kind.B, backwards[:pairs])
    return np.concatenate(
        [slots(Kind.F, forwards[:lone]), middle, slots(Kind.B, backwards[pairs:])]
    )


def split_order(forwards: IntArray, backwards: IntArray, lone: int, pending: int) -> IntArray:
    """The same with backwards split into I and W; every W runs `pending` backwards after its I."""
    total = len(forwards)
    f, i, w = (
        slots(k, x) for k, x in ((Kind.F, forwards), (Kind.I, backwards), (Kind.W, backwards))
    )
    # Three passes a round: the forward that is `lone` ahead, an input gradient, an older W.
    turn = np.arange(total)
    at = np.concatenate([3 * (turn - lone), 3 * turn + 1, 3 * (turn + pending) + 2])
    return np.concatenate([f, i, w])[np.argsort(at, kind="stable")]


def paired_order(forwards: IntArray, backwards: IntArray, lone: int) -> IntArray:
    """`lone` forwards, then pairs of a forward with a backward, then lone backwards."""
    pairs = len(forwards) - lone
    middle = slots(Kind.FB, forwards[lone:])
    middle[:, 3:5] = backwards[:pairs]
    return np.concatenate(
        [slots(Kind.F, forwards[:lone]), middle, slots(Kind.B, backwards[pairs:])]
    )


def without_micro_batches(order: IntArray, kept: Sequence[int]) -> IntArray:
    """Keep the first ``kept[chunk]`` micro-batches of each chunk.

    A pair that loses one half becomes a lone pass.
    """
    out = order.copy()
    limit = np.array(kept)
    paired = out[:, 0] == Kind.FB
    keep, keep_back = out[:, 2] < limit[out[:, 1]], out[:, 4] < limit[out[:, 3]]
    only_back = paired & ~keep & keep_back
    out[paired & keep & ~keep_back, 0] = Kind.F
    out[only_back, 1:3] = out[only_back, 3:5]
    out[only_back, 0] = Kind.B
    out[out[:, 0] != Kind.FB, 3:5] = -1
    return np.asarray(out[np.where(paired, keep | keep_back, keep)])
