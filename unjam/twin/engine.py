"""The event engine: executes the order lists of a schedule under given durations.

Every rank runs its slots strictly in order. A slot starts when the rank is free and its inputs
have arrived: a forward's from the stage before, a gradient from the stage after. Sends are posted
and do not block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np
import numpy.typing as npt

from unjam.schedule.ir import IntArray, Kind, Schedule
from unjam.spec.errors import InputError
from unjam.twin.timeline import Durations, FloatArray, Timeline

OffsetArray = npt.NDArray[np.int64]

_F, _B, _I, _W, _FB = (int(x) for x in Kind)


@dataclass(frozen=True, eq=False)
class FlatSchedule:
    """A schedule's orders, one after the other.

    Attributes:
        slots: ``[all slots, 5]``.
        offsets: rank r has ``slots[offsets[r]:offsets[r+1]]``.
        ends: index of the last slot with a backward of each rank and chunk, ``[P, V]``; -1 = none.
    """

    slots: IntArray
    offsets: OffsetArray
    ends: OffsetArray


class _ByIdentity:
    """Hashes a schedule by identity: its arrays are not hashable and never change."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __hash__(self) -> int:
        return id(self.schedule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.schedule is other.schedule


def flatten(schedule: Schedule) -> FlatSchedule:
    """Concatenate the orders; the same schedule object gives the same arrays."""
    return _flatten(_ByIdentity(schedule))


@lru_cache(maxsize=512)
def _flatten(key: _ByIdentity) -> FlatSchedule:
    schedule = key.schedule
    slots = np.ascontiguousarray(np.concatenate(schedule.orders), dtype=np.int32)
    offsets = np.cumsum([0, *(len(x) for x in schedule.orders)]).astype(np.int64)
    ends = np.full((schedule.ranks, schedule.chunks), -1, dtype=np.int64)
    for rank, order in enumerate(schedule.orders):
        for chunk in range(schedule.chunks):
            lone = np.isin(order[:, 0], (_B, _I, _W)) & (order[:, 1] == chunk)
            found = np.flatnonzero(lone | ((order[:, 0] == _FB) & (order[:, 3] == chunk)))
            if len(found):
                ends[rank, chunk] = offsets[rank] + found[-1]
    return FlatSchedule(slots, offsets, ends)


@numba.njit(cache=True)
def _run(  # noqa: PLR0912, PLR0915 (one loop in compiled code; calls would cost more)
    slots: IntArray,
    offsets: OffsetArray,
    micro_batches: int,
    forward: FloatArray,
    input_gradient: FloatArray,
    weight_gradient: FloatArray,
    pair: FloatArray,
    pair_forward_sent: FloatArray,
    pair_backward_sent: FloatArray,
    send: FloatArray,
    ready: FloatArray,
) -> tuple[FloatArray, FloatArray, OffsetArray]:
    """Start and end of every slot, and where each rank stopped (its offset's end unless stuck)."""
    ranks = len(offsets) - 1
    stages = len(forward)
    missing = -1.0
    activation = np.full((stages, micro_batches), missing)  # when stage s's output is sent
    gradient = np.full((stages, micro_batches), missing)  # when stage s's gradient is sent
    finished = np.full((stages, micro_batches), missing)  # when stage s's forward is over
    start = np.zeros(len(slots))
    end = np.zeros(len(slots))
    position = offsets[:-1].copy()
    free = np.zeros(ranks)
    moved = True
    while moved:
        moved = False
        for r in range(ranks):
            while position[r] < offsets[r + 1]:
                i = position[r]
                kind = slots[i, 0]
                s = slots[i, 1] * ranks + r
                m = slots[i, 2]
                begin = free[r]
                if kind in (_F, _FB):
                    begin = max(begin, ready[s])
                    if s > 0:
                        if activation[s - 1, m] < 0:
                            break
                        begin = max(begin, activation[s - 1, m] + send[s - 1])
                t, n = s, m
                if kind == _FB:
                    t, n = slots[i, 3] * ranks + r, slots[i, 4]
                if kind not in (_F, _W):
                    if finished[t, n] < 0:
                        break
                    if t < stages - 1:
                        if gradient[t + 1, n] < 0:
                            break
                        begin = max(begin, gradient[t + 1, n] + send[t + 1])
                if kind == _F:
                    last = begin + forward[s]
                    activation[s, m] = finished[s, m] = last
                elif kind == _B:
                    gradient[s, m] = begin + input_gradient[s]
                    last = gradient[s, m] + weight_gradient[s]
                elif kind == _I:
                    last = begin + input_gradient[s]
                    gradient[s, m] = last
                elif kind == _W:
                    if gradient[s, m] < 0:
                        break
                    last = begin + weight_gradient[s]
                else:
                    v, w = slots[i, 1], slots[i, 3]
                    last = begin + pair[r, v, w]
                    activation[s, m] = begin + pair_forward_sent[r, v, w]
                    finished[s, m] = last
                    gradient[t, n] = begin + pair_backward_sent[r, v, w]
                start[i], end[i] = begin, last
                free[r] = last
                position[r] += 1
                moved = True
    return start, end, position


def _simulate(schedule: Schedule, durations: Durations) -> tuple[FloatArray, FloatArray]:
    flat = flatten(schedule)
    start, end, position = _run(
        flat.slots,
        flat.offsets,
        schedule.micro_batches,
        durations.forward,
        durations.input_gradient,
        durations.weight_gradient,
        durations.pair,
        durations.pair_forward_sent,
        durations.pair_backward_sent,
        durations.send,
        durations.ready,
    )
    stuck = np.flatnonzero(position < flat.offsets[1:])
    if len(stuck):
        raise InputError(_deadlock(schedule, flat, position, int(stuck[0])))
    return start, end


def _deadlock(schedule: Schedule, flat: FlatSchedule, position: OffsetArray, rank: int) -> str:
    kind, chunk, micro_batch, *_ = flat.slots[position[rank]].tolist()
    slot = int(position[rank] - flat.offsets[rank])
    return (
        f"schedule {schedule.name}: deadlock: rank {rank} waits at slot {slot} "
        f"({Kind(kind).name} of chunk {chunk}, micro-batch {micro_batch})"
    )


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """When every slot runs.

    Raises:
        InputError: the orders deadlock; names the first rank that is stuck and its slot.
    """
    start, end = _simulate(schedule, durations)
    cuts = flatten(schedule).offsets[1:-1]
    return Timeline(schedule, tuple(np.split(start, cuts)), tuple(np.split(end, cuts)))


def simulate_seconds(
    schedule: Schedule, durations: Durations
) -> tuple[float, FloatArray, FloatArray]:
    """The same without the timeline, for searches.

    Returns:
        Seconds of the pipeline, busy seconds per rank ``[P]``, and the end of the last backward of
        each rank and chunk ``[P, V]``, from which its gradients can be reduced.
    """
    start, end = _simulate(schedule, durations)
    flat = flatten(schedule)
    busy = np.add.reduceat(end - start, flat.offsets[:-1])
    return float(end.max()), busy, np.where(flat.ends >= 0, end[flat.ends], 0.0)
