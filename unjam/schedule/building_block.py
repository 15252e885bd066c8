"""Schedules from a building block: the passes of one micro-batch, repeated every six passes.

Two chunks per rank lie in a V. Micro-batch m runs each of its passes ``6m`` unit times after
micro-batch 0; a rank has six passes of a micro-batch, so the pattern fills it. How far apart a
rank's F and W of a chunk lie is how much memory it holds, and follows from the offsets between
neighbouring ranks [Qi et al. 2024, "Pipeline parallelism with controllable memory"].
"""

from __future__ import annotations

from itertools import product

import numpy as np

from unjam.schedule.ir import IntArray, Kind, Placement, Schedule

PERIOD = 6  # F, I, W of two chunks


def block_schedule(
    name: str, ranks: int, micro_batches: int, offsets: tuple[int, int, int, int]
) -> Schedule:
    """Repeat the block with the given offsets.

    Args:
        name: of the schedule.
        ranks: P.
        micro_batches: M.
        offsets: unit times from one rank to the next of F of the first chunk, F of the second, I of
            the second, I of the first; at least 1. The second chunk's forward and the first one's
            gradient run from rank P-1 to rank 0.
    """
    times = _times(ranks, offsets)
    repeats = PERIOD * np.arange(micro_batches)[:, None]
    orders = []
    for rank in range(ranks):
        block = _with_weights(times[rank])
        slots = np.full((micro_batches * PERIOD, 5), -1, dtype=np.int32)
        slots[:, :2] = np.tile([(kind, chunk) for _, kind, chunk in block], (micro_batches, 1))
        slots[:, 2] = np.repeat(np.arange(micro_batches), PERIOD)
        at = (repeats + np.array([time for time, _, _ in block])).ravel()
        # Whatever a pass waits for starts earlier, so orders by time cannot deadlock.
        orders.append(slots[np.argsort(at, kind="stable")])
    return Schedule(name, ranks, 2, micro_batches, tuple(orders), Placement.V)


def _times(ranks: int, offsets: tuple[int, int, int, int]) -> IntArray:
    """Start of F0, F1, I1, I0 of micro-batch 0 on each rank, ``[P, 4]``.

    The three gaps where the direction turns are the smallest with which no two passes of a rank
    fall on the same time of the period.
    """
    rank = np.arange(ranks)
    down, up = rank, ranks - 1 - rank
    best, fewest = np.zeros((ranks, 4), dtype=np.int32), ranks * PERIOD
    for gaps in sorted(product(range(1, PERIOD + 1), repeat=3), key=lambda x: (sum(x), x)):
        f0 = offsets[0] * down
        f1 = f0[-1] + gaps[0] + offsets[1] * up
        i1 = f1[0] + gaps[1] + offsets[2] * down
        i0 = i1[-1] + gaps[2] + offsets[3] * up
        times = np.stack([f0, f1, i1, i0], axis=1)
        residues = np.sort(times % PERIOD, axis=1)
        clashes = int((np.diff(residues, axis=1) == 0).sum())
        if clashes < fewest:
            best, fewest = times.astype(np.int32), clashes
    return best


def _with_weights(times: IntArray) -> list[tuple[int, Kind, int]]:
    """The six passes of a rank as (time, kind, chunk); each W takes the first free time after I."""
    f0, f1, i1, i0 = times.tolist()
    block = [(f0, Kind.F, 0), (f1, Kind.F, 1), (i1, Kind.I, 1), (i0, Kind.I, 0)]
    taken = {time % PERIOD for time, _, _ in block}
    for time, _, chunk in sorted(block[2:]):
        after = next((t for t in range(time + 1, time + PERIOD) if t % PERIOD not in taken), time)
        taken.add(after % PERIOD)
        block.append((after, Kind.W, chunk))
    return block
