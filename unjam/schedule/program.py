"""The program: in which order every stream of every rank runs its operations.

The twin replays it under other durations; the runtime executes it. Streams run strictly in order,
messages between ranks are posted and do not block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unjam.schedule.operations import (
    DELAY,
    GRADIENT,
    LAYER,
    MICRO_BATCH,
    OPENING,
    PLACE,
    ROLE,
    SLICE,
    STREAM,
    TICKS,
    WAITS,
    WHAT,
    Operations,
)
from unjam.schedule.overlap import COMMUNICATION, STREAMS, FloatArray, IntArray, SubOperation
from unjam.spec.compiled import compiled
from unjam.spec.errors import InputError


class Step(NamedTuple):
    """One operation of a stream, as the runtime needs it."""

    what: SubOperation
    chunk: int
    micro_batch: int
    layer: int  # counted over the layers of all places, -1 in a chunk without layers
    slice: int


@dataclass(frozen=True, eq=False)
class Program:
    """Operations and the order in which every stream runs them.

    Attributes:
        operations: what runs.
        sequence: rows, each after all that it waits for and after those before it on its stream.
        start: ticks at which each row starts, ``[N]``.
        end: ticks at which it ends, ``[N]``.
        peak: most that each rank held, in the unit of ``operations.size``, ``[P]``.
    """

    operations: Operations
    sequence: IntArray
    start: IntArray
    end: IntArray
    peak: FloatArray

    @property
    def seconds(self) -> float:
        """End of the last operation."""
        return float(self.end.max(initial=0)) * self.operations.tick_seconds

    def stream(self, rank: int, stream: int) -> IntArray:
        """Rows of one stream of a rank in order."""
        mine = self.operations.rows[self.sequence, STREAM] == STREAMS * rank + stream
        return np.asarray(self.sequence[mine])

    def steps(self, rank: int, stream: int) -> Iterator[Step]:
        """What one stream of a rank runs, in order."""
        ranks = self.operations.schedule.ranks
        for row in self.operations.rows[self.stream(rank, stream)].tolist():
            place, layer = row[PLACE] // ranks, row[LAYER]
            yield Step(SubOperation(row[WHAT]), place, row[MICRO_BATCH], layer, row[SLICE])

    def busy_seconds(self, stream: int) -> FloatArray:
        """Seconds for which one stream of each rank runs something, ``[P]``."""
        rows, ranks = self.operations.rows, self.operations.schedule.ranks
        mine = rows[:, STREAM] % STREAMS == stream
        ticks = np.bincount(rows[mine, STREAM] // STREAMS, rows[mine, TICKS], minlength=ranks)
        return np.asarray(ticks * self.operations.tick_seconds)

    def seconds_without_communication(self) -> float:
        """Seconds in the same order if dispatch and combine took no time."""
        ticks = self.operations.rows[:, TICKS].copy()
        ticks[self.operations.rows[:, WHAT] >= min(COMMUNICATION)] = 0
        return float(replay(self, ticks).max(initial=0)) * self.operations.tick_seconds


def replay(program: Program, ticks: IntArray) -> IntArray:
    """End of every operation in the same order under other durations; ticks, ``[N]``."""
    operations = program.operations
    streams = STREAMS * operations.schedule.ranks
    return _replay(operations.rows, program.sequence, ticks, streams)


@compiled
def _replay(rows: IntArray, sequence: IntArray, ticks: IntArray, streams: int) -> IntArray:
    end = np.zeros(len(rows), dtype=np.int64)
    free = np.zeros(streams, dtype=np.int64)
    for n in sequence:
        row = rows[n]
        begin = free[row[STREAM]]
        for k in range(4):
            if row[WAITS + k] >= 0:
                arrives = end[row[WAITS + k]] + (row[DELAY] if k < 2 else 0)
                begin = max(begin, arrives)
        end[n] = free[row[STREAM]] = begin + ticks[n]
    return end


def check_program(program: Program, capacity: FloatArray | None = None) -> None:
    """Raise unless every operation runs once, after all that it waits for, within memory.

    Streams run in order, so a sequence that respects every wait is a proof that nothing deadlocks.

    Args:
        program: the program.
        capacity: what each rank may hold, ``[P]``; None = anything.

    Raises:
        InputError: one line that names the operation.
    """
    rows, order = program.operations.rows, program.sequence
    name = program.operations.schedule.name
    times = np.bincount(order, minlength=len(rows))
    if len(times) != len(rows) or (times != 1).any():
        wrong = int((times != 1).argmax())
        raise InputError(f"program {name}: operation {_label(program, wrong)} runs {times[wrong]}x")
    position = np.empty(len(rows), dtype=np.int64)
    position[order] = np.arange(len(rows))
    waits = rows[:, WAITS:]
    early = ((waits >= 0) & (position[waits] > position[:, None])).any(axis=1)
    if early.any():
        label = _label(program, int(early.argmax()))
        raise InputError(f"program {name}: deadlock: {label} is ordered before what it waits for")
    if capacity is not None:
        peak = held_peak(program)
        over = np.flatnonzero(peak > capacity * (1 + 1e-6))
        if len(over):
            r = int(over[0])
            raise InputError(f"program {name}: rank {r} holds {peak[r]:g} of {capacity[r]:g}")


def held_peak(program: Program) -> FloatArray:
    """Most that each rank holds if its computation runs in this order, ``[P]``."""
    operations = program.operations
    rows, schedule = operations.rows, operations.schedule
    left = np.zeros((len(operations.size), schedule.micro_batches), dtype=np.int64)
    back = rows[:, ROLE] >= GRADIENT
    np.add.at(left, (rows[back, PLACE], rows[back, MICRO_BATCH]), 1)
    return _held_peak(rows, program.sequence, left, operations.size, schedule.ranks)


@compiled
def _held_peak(
    rows: IntArray, sequence: IntArray, left: IntArray, size: FloatArray, ranks: int
) -> FloatArray:
    held, peak = np.zeros(ranks), np.zeros(ranks)
    for n in sequence:
        row = rows[n]
        rank, place = row[STREAM] // STREAMS, row[PLACE]
        if row[ROLE] == OPENING:
            held[rank] += size[place]
            peak[rank] = max(peak[rank], held[rank])
        elif row[ROLE] >= GRADIENT:
            left[place, row[MICRO_BATCH]] -= 1
            if left[place, row[MICRO_BATCH]] == 0:
                held[rank] -= size[place]
    return peak


def _label(program: Program, n: int) -> str:
    row = program.operations.rows[n]
    ranks = program.operations.schedule.ranks
    chunk, rank = divmod(int(row[PLACE]), ranks)
    return (
        f"{SubOperation(row[WHAT]).name} of rank {rank}, chunk {chunk}, "
        f"micro-batch {row[MICRO_BATCH]}, layer {row[LAYER]}, slice {row[SLICE]}"
    )
