"""List scheduling: run the operations of a schedule in time and note the order of every stream.

A stream that is free starts, of the operations that can start, the one of the earliest slot; weight
gradients come last, because nobody waits for them, and so fill every wait [Graham 1969; here with
release times, passes in order and a memory limit]. A forward starts only where its activations fit.

Passes of a kind stay in the schedule's order on each rank. So if every rank may hold what the
schedule itself holds, the operations cannot get stuck: take the passes in an order in which the
schedule runs; the first of them that has not run has its inputs, and what it needs fits.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from unjam.schedule.heap import pop, push
from unjam.schedule.operations import (
    DELAY,
    GRADIENT,
    MICRO_BATCH,
    NONE,
    OPENING,
    PLACE,
    ROLE,
    SLICE,
    SLOT,
    STREAM,
    TICKS,
    WAITS,
    WEIGHT,
    Operations,
)
from unjam.schedule.overlap import STREAMS, FloatArray, IntArray
from unjam.schedule.program import Program
from unjam.spec.compiled import compiled


class Preference(StrEnum):
    """Which of the operations that can start goes first; weight gradients are always last."""

    SLOT = "slot"  # the earlier slot of the schedule
    BACKWARD = "backward"  # gradients before forwards
    FORWARD = "forward"  # forwards before gradients


def list_schedule(
    operations: Operations, preference: Preference, capacity: FloatArray
) -> Program | None:
    """Order the operations; None if they get stuck because too little fits.

    Args:
        operations: the graph.
        preference: what goes first.
        capacity: how much each rank may hold, ``[P]``, in the unit of ``operations.size``.
    """
    rows, ranks = operations.rows, operations.schedule.ranks
    count, streams = len(rows), STREAMS * ranks
    missing = (rows[:, WAITS:] >= 0).sum(axis=1)
    room = np.cumsum([0, *np.bincount(rows[:, STREAM], minlength=streams).tolist()])
    back = rows[:, ROLE] >= GRADIENT
    left = np.zeros((len(operations.size), operations.schedule.micro_batches), dtype=np.int64)
    np.add.at(left, (rows[back, PLACE], rows[back, MICRO_BATCH]), 1)
    start, end = np.zeros((2, count), dtype=np.int64)
    held, peak = np.zeros((2, ranks))
    sequence = _run(
        rows, _keys(rows, preference), *_followers(rows), missing, room, left, start, end,
        operations.size, np.asarray(capacity * (1 + 1e-9), dtype=np.float64), held, peak,
    )  # fmt: skip
    return Program(operations, sequence, start, end, peak) if len(sequence) == count else None


def _keys(rows: IntArray, preference: Preference) -> IntArray:
    """One number per row, smaller first: weights last, then the preference, slot and slice."""
    role = rows[:, ROLE]
    back = role >= GRADIENT
    first = {Preference.SLOT: 0 * back, Preference.BACKWARD: 1 - back, Preference.FORWARD: 1 * back}
    group = np.where(role == WEIGHT, 2, first[preference])
    cuts = rows[:, SLICE].max(initial=0)
    part = np.where(back, cuts - rows[:, SLICE], rows[:, SLICE])
    return np.asarray(((group << 40) | (rows[:, SLOT] << 10)) + part, dtype=np.int64)


@compiled
def _followers(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Who waits for each row: ``targets[starts[n]:starts[n+1]]``, ``4 * row + which wait``."""
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    for n in range(len(rows)):
        for k in range(4):
            if rows[n, WAITS + k] >= 0:
                starts[rows[n, WAITS + k] + 1] += 1
    starts = np.cumsum(starts)
    targets = np.empty(starts[-1], dtype=np.int64)
    position = starts.copy()
    for n in range(len(rows)):
        for k in range(4):
            before = rows[n, WAITS + k]
            if before >= 0:
                targets[position[before]] = 4 * n + k
                position[before] += 1
    return starts, targets


@compiled
def _run(
    rows: IntArray, keys: IntArray, starts: IntArray, targets: IntArray, missing: IntArray,
    room: IntArray, left: IntArray, start: IntArray, end: IntArray, size: FloatArray,
    limit: FloatArray, held: FloatArray, peak: FloatArray,
) -> IntArray:  # fmt: skip
    """Fill `start`, `end` and `peak`; returns the rows in the order of their start.

    Stream i keeps its ready rows in a heap at ``ready[room[i]:room[i+1]]``. Events are ends (item =
    row) and arrivals of messages (item = N + target).
    """
    count, streams = len(rows), len(room) - 1
    sequence, fresh, ready = np.empty((3, count), dtype=np.int64)
    ready_keys = np.empty(count, dtype=np.int64)
    times, items = np.empty((2, count + len(targets) + 1), dtype=np.int64)
    waiting = np.zeros(streams, dtype=np.int64)
    running = np.full(streams, NONE)
    blocked = np.full(len(limit), NONE)  # a forward of each rank that does not fit yet
    touched = np.empty(2 * count, dtype=np.int64)  # streams on which something may start
    ran, events, now, touches = 0, 0, 0, 0
    many = _first(missing, fresh)
    while True:
        for n in fresh[:many]:
            stream = rows[n, STREAM]
            if _fits(rows, n, size, limit, held, peak, blocked):
                first = room[stream]
                waiting[stream] = push(
                    ready_keys[first:], ready[first:], waiting[stream], keys[n], n
                )
                touched[touches] = stream
                touches += 1
        many = 0
        for stream in touched[:touches]:
            if running[stream] < 0 and waiting[stream] > 0:
                first = room[stream]
                n = ready[first]
                waiting[stream] = pop(ready_keys[first:], ready[first:], waiting[stream])
                running[stream], sequence[ran] = n, n
                start[n], end[n] = now, now + rows[n, TICKS]
                ran += 1
                events = push(times, items, events, end[n], n)
        touches = 0
        if events == 0:
            return sequence[:ran]
        now = times[0]
        while events > 0 and times[0] == now:
            item = items[0]
            events = pop(times, items, events)
            if item >= count:
                many = _arrive(missing, fresh, many, (item - count) // 4)
                continue
            running[rows[item, STREAM]] = NONE
            touched[touches] = rows[item, STREAM]
            touches += 1
            events, many = _tell(
                rows, starts, targets, item, now, missing, fresh, many, times, items, events
            )
            many = _free(rows, item, left, size, held, blocked, fresh, many)


@compiled
def _first(missing: IntArray, fresh: IntArray) -> int:
    """Collect the rows that wait for nothing."""
    many = 0
    for n in range(len(missing)):
        if missing[n] == 0:
            fresh[many] = n
            many += 1
    return many


@compiled
def _fits(
    rows: IntArray, n: int, size: FloatArray, limit: FloatArray, held: FloatArray,
    peak: FloatArray, blocked: IntArray,
) -> bool:  # fmt: skip
    """Whether a row can take its turn; a forward that does not fit waits in `blocked`."""
    if rows[n, ROLE] != OPENING:
        return True
    rank = rows[n, STREAM] // STREAMS
    need = size[rows[n, PLACE]]
    if held[rank] + need > limit[rank]:
        blocked[rank] = n
        return False
    held[rank] += need
    peak[rank] = max(peak[rank], held[rank])
    return True


@compiled
def _tell(
    rows: IntArray, starts: IntArray, targets: IntArray, n: int, now: int, missing: IntArray,
    fresh: IntArray, many: int, times: IntArray, items: IntArray, events: int,
) -> tuple[int, int]:  # fmt: skip
    """Tell all who wait for row n that it is over, those on other ranks after the message."""
    for j in range(starts[n], starts[n + 1]):
        target = targets[j]
        delay = rows[target // 4, DELAY] if target % 4 < 2 else 0
        if delay > 0:
            events = push(times, items, events, now + delay, len(rows) + target)
        else:
            many = _arrive(missing, fresh, many, target // 4)
    return events, many


@compiled
def _arrive(missing: IntArray, fresh: IntArray, many: int, n: int) -> int:
    missing[n] -= 1
    if missing[n] == 0:
        fresh[many] = n
        return many + 1
    return many


@compiled
def _free(
    rows: IntArray, n: int, left: IntArray, size: FloatArray, held: FloatArray,
    blocked: IntArray, fresh: IntArray, many: int,
) -> int:  # fmt: skip
    """Free a pass's memory with its last gradient; a forward that waits for memory tries again."""
    if rows[n, ROLE] < GRADIENT:
        return many
    place, rank = rows[n, PLACE], rows[n, STREAM] // STREAMS
    left[place, rows[n, MICRO_BATCH]] -= 1
    if left[place, rows[n, MICRO_BATCH]] == 0:
        held[rank] -= size[place]
        if blocked[rank] >= 0:
            fresh[many] = blocked[rank]
            blocked[rank] = NONE
            many += 1
    return many
