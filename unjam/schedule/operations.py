"""All sub-operations of a schedule as one graph: the passes of its slots, cut into slices.

The graph says what must wait for what (`unjam.schedule.overlap`). In which order each stream runs
its operations is left to the list scheduler (`unjam.schedule.list_scheduler`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.schedule.ir import Kind, Schedule
from unjam.schedule.overlap import (
    INTER,
    INTRA,
    STREAMS,
    FloatArray,
    IntArray,
    LayerTable,
    Slicing,
    SubOperation,
)
from unjam.spec.compiled import compiled

# Columns of `Operations.rows`. WAITS are four rows to wait for, -1 = none; the first two may come
# from another rank and then arrive DELAY after their end.
STREAM, TICKS, WHAT, PLACE, MICRO_BATCH, LAYER, SLICE, SLOT, ROLE, DELAY, WAITS = range(11)
COLUMNS = WAITS + 4
NONE, EXTERNAL = -1, -2
# Values of ROLE. A forward's memory is taken by its opening operation and free when all gradients
# and weight gradients of the pass are over.
FORWARD, OPENING, GRADIENT, WEIGHT = range(4)

# Columns of the table of passes.
RANK, BACK, AT, BATCH, CUT, TURN, AT_SLOT = range(7)

TICKS_PER_STEP = 2.0**46

_A_F, _S_F, _E_F = int(SubOperation.A_F), int(SubOperation.S_F), int(SubOperation.E_F)
_A_B, _S_B, _E_B = int(SubOperation.A_B), int(SubOperation.S_B), int(SubOperation.E_B)
_A_W, _S_W, _E_W = int(SubOperation.A_W), int(SubOperation.S_W), int(SubOperation.E_W)
_D_F_INTER, _D_F_INTRA = int(SubOperation.D_F_INTER), int(SubOperation.D_F_INTRA)
_C_F_INTRA, _C_F_INTER = int(SubOperation.C_F_INTRA), int(SubOperation.C_F_INTER)
_C_B_INTER, _C_B_INTRA = int(SubOperation.C_B_INTER), int(SubOperation.C_B_INTRA)
_D_B_INTRA, _D_B_INTER = int(SubOperation.D_B_INTRA), int(SubOperation.D_B_INTER)


@dataclass(frozen=True, eq=False)
class Operations:
    """Sub-operations of all ranks.

    Times are whole ticks, so that every rank that derives an order derives the same one.

    Attributes:
        schedule: the slots that they come from.
        rows: int64 ``[N, 15]``; see the column names above. STREAM is ``3 * rank + stream``, SLOT
            the slot of the pass on its rank.
        tick_seconds: seconds of a tick.
        size: what one micro-batch leaves in memory at each place, ``[P*V]``.
    """

    schedule: Schedule
    rows: IntArray
    tick_seconds: float
    size: FloatArray


def operations_of(schedule: Schedule, table: LayerTable, slicing: Slicing) -> Operations:
    """Cut the passes of `schedule` into sub-operations.

    Only slots F, B and FB are read; weight gradients run where the list scheduler puts them.
    """
    total = table.seconds.sum() * schedule.micro_batches + table.send.sum()
    tick = (float(total) or 1.0) / TICKS_PER_STEP
    ticks = np.rint(table.seconds / tick).astype(np.int64)
    send = np.rint(table.send / tick).astype(np.int64)
    passes = _passes(schedule, slicing)
    before, after = schedule.neighbours()
    per_layer = np.diff(table.offsets)[passes[:, AT]]
    most = int((np.maximum(per_layer, 1) * passes[:, CUT] * 11).sum())
    rows = np.full((most, COLUMNS), NONE, dtype=np.int64)
    cuts = int(passes[:, CUT].max())
    outputs = np.full((3, len(send), schedule.micro_batches, cuts), NONE, dtype=np.int64)
    costs = np.array([slicing.cost, float(slicing.weights)])
    count = _emit(rows, passes, ticks, table.offsets.astype(np.int64), outputs, costs)
    rows = rows[:count]
    cut_of = np.zeros((2, len(send), schedule.micro_batches), dtype=np.int64)
    cut_of[passes[:, BACK], passes[:, AT], passes[:, BATCH]] = passes[:, CUT]
    links = np.stack([before, after]).astype(np.int64)
    _connect(rows, outputs, cut_of, links, send, schedule.ranks)
    return Operations(schedule, rows, tick, table.size.astype(np.float64))


def _passes(schedule: Schedule, slicing: Slicing) -> IntArray:
    """Every forward and backward in the order of its rank, ``[passes, 7]``.

    Between a rank's first backward and its last forward the two kinds hide each other's
    communication; these passes are cut like pairs, the others like lone passes.
    """
    parts = []
    for rank, order in enumerate(schedule.orders):
        kind, v, m, w, n = order.T.astype(np.int64)
        paired = kind == Kind.FB
        forward, backward = paired | (kind == Kind.F), paired | (kind == Kind.B)
        first = int(backward.argmax()) if backward.any() else len(order)
        last = len(order) - 1 - int(forward[::-1].argmax())
        for back, rows, chunk, batch in (
            (0, forward, v, m),
            (1, backward, np.where(paired, w, v), np.where(paired, n, m)),
        ):
            slots = np.flatnonzero(rows)
            steady = (slots >= first) & (slots <= last)
            alone = slicing.backward if back else slicing.forward
            columns = np.zeros((len(slots), 7), dtype=np.int64)
            columns[:, RANK], columns[:, BACK] = rank, back
            columns[:, AT] = chunk[rows] * schedule.ranks + rank
            columns[:, BATCH] = batch[rows]
            columns[:, CUT] = np.where(steady, slicing.pair, alone)
            columns[:, TURN] = np.arange(len(slots))
            columns[:, AT_SLOT] = slots
            parts.append(columns)
    return np.concatenate(parts)


@compiled
def _share(ticks: int, cost: float, part: int, parts: int) -> int:
    """Ticks of one of `parts` slices; together they take ``1 + cost * (parts-1)`` times as long."""
    whole = int(ticks * (1.0 + cost * (parts - 1)))
    return (part + 1) * whole // parts - part * whole // parts


@compiled
def _put(
    rows: IntArray, n: int, row: IntArray, what: int, layer: int, part: int, ticks: int, main: int
) -> int:
    stream = 0
    if what >= _D_F_INTER:
        stream = INTER
        if what in (_D_F_INTRA, _C_F_INTRA, _C_B_INTRA, _D_B_INTRA):
            stream = INTRA
    rows[n, STREAM] = STREAMS * row[RANK] + stream
    rows[n, TICKS] = ticks
    rows[n, WHAT] = what
    rows[n, PLACE] = row[AT]
    rows[n, MICRO_BATCH] = row[BATCH]
    rows[n, LAYER] = layer
    rows[n, SLICE] = part
    rows[n, SLOT] = row[AT_SLOT]
    rows[n, ROLE] = GRADIENT if row[BACK] else FORWARD
    rows[n, DELAY] = 0
    rows[n, WAITS] = main
    return n


@compiled
def _chain(
    rows: IntArray, n: int, row: IntArray, layer: int, part: int, ticks: IntArray,
    cost: float, whats: tuple[int, int, int], main: int,
) -> tuple[int, int]:  # fmt: skip
    """Up to three operations after one another, those that take no time left out."""
    for what in whats:
        if what >= 0 and ticks[what] > 0:
            took = _share(ticks[what], cost, part, row[CUT])
            main = _put(rows, n, row, what, layer, part, took, main)
            n += 1
    return n, main


@compiled
def _forward(
    rows: IntArray, n: int, row: IntArray, first: int, after: int, table: IntArray,
    outputs: IntArray, cost: float, previous: int,
) -> tuple[int, int]:  # fmt: skip
    """A forward; returns the next free row and the row that the next forward follows."""
    s = row[CUT]
    main, shared = np.full(s, EXTERNAL), np.full(s, NONE)
    marker = previous
    for layer in range(first, max(after, first + 1)):
        empty = first == after
        last_a = previous if layer == first else NONE
        for q in range(s):
            took = 0 if empty else _share(table[layer, _A_F], cost, q, s)
            a = _put(rows, n, row, _A_F, layer, q, took, main[q])
            n += 1
            rows[a, WAITS + 1], rows[a, WAITS + 2] = shared[q], last_a
            if layer == first and q == 0:
                rows[a, ROLE] = OPENING
            main[q] = last_a = a
            shared[q] = NONE
            if empty:
                continue
            ticks = table[layer]
            if ticks[_S_F] > 0:
                took = _share(ticks[_S_F], cost, q, s)
                shared[q] = _put(rows, n, row, _S_F, layer, q, took, a)
                n += 1
            whats = (_D_F_INTER, _D_F_INTRA, _E_F)
            n, main[q] = _chain(rows, n, row, layer, q, ticks, cost, whats, a)
            whats = (_C_F_INTRA, _C_F_INTER, -1)
            n, main[q] = _chain(rows, n, row, layer, q, ticks, cost, whats, main[q])
        if layer == first:
            marker = last_a
    outputs[0, row[AT], row[BATCH], :s] = main
    outputs[1, row[AT], row[BATCH], :s] = shared
    return n, marker


@compiled
def _weight(
    rows: IntArray, n: int, row: IntArray, what: int, layer: int, part: int, ticks: int,
    costs: FloatArray, main: int,
) -> int:  # fmt: skip
    """A weight gradient of one slice, or of all once the last (slice 0) is there."""
    if ticks == 0:
        return n
    if costs[1] > 0:
        ticks = _share(ticks, costs[0], part, row[CUT])
    elif part > 0:
        return n
    _put(rows, n, row, what, layer, part, ticks, main)
    rows[n, ROLE] = WEIGHT
    return n + 1


@compiled
def _backward(
    rows: IntArray, n: int, row: IntArray, first: int, after: int, table: IntArray,
    outputs: IntArray, costs: FloatArray, previous: int,
) -> tuple[int, int]:  # fmt: skip
    """A backward, from the last layer and slice to the first; returns like `_forward`."""
    s, cost = row[CUT], costs[0]
    main = np.full(s, EXTERNAL)
    marker = previous
    empty = first == after
    for layer in range(max(after, first + 1) - 1, first - 1, -1):
        ticks = table[min(layer, len(table) - 1)]
        last_a, last_e, last_s = NONE, NONE, NONE
        for q in range(s - 1, -1, -1):
            opening = n
            above, shared = main[q], NONE
            if not empty:
                whats = (_C_B_INTER, _C_B_INTRA, -1)
                n, main[q] = _chain(rows, n, row, layer, q, ticks, cost, whats, main[q])
                if ticks[_E_B] > 0 or ticks[_E_W] > 0:
                    took = _share(ticks[_E_B], cost, q, s)
                    e = _put(rows, n, row, _E_B, layer, q, took, main[q])
                    n += 1
                    rows[e, WAITS + 2] = last_e
                    main[q] = last_e = e
                    n = _weight(rows, n, row, _E_W, layer, q, ticks[_E_W], costs, e)
                whats = (_D_B_INTRA, _D_B_INTER, -1)
                n, main[q] = _chain(rows, n, row, layer, q, ticks, cost, whats, main[q])
                if ticks[_S_B] > 0 or ticks[_S_W] > 0:
                    took = _share(ticks[_S_B], cost, q, s)
                    shared = _put(rows, n, row, _S_B, layer, q, took, above)
                    n += 1
                    rows[shared, WAITS + 2] = last_s
                    last_s = shared
                    n = _weight(rows, n, row, _S_W, layer, q, ticks[_S_W], costs, shared)
            took = 0 if empty else _share(ticks[_A_B], cost, q, s)
            a = _put(rows, n, row, _A_B, layer, q, took, main[q])
            n += 1
            rows[a, WAITS + 2], rows[a, WAITS + 3] = last_a, shared
            main[q] = last_a = a
            if not empty:
                n = _weight(rows, n, row, _A_W, layer, q, ticks[_A_W], costs, a)
            if layer == max(after, first + 1) - 1:
                if q == s - 1 and rows[opening, WAITS + 3] == NONE:
                    rows[opening, WAITS + 3] = previous
                marker = opening
    outputs[2, row[AT], row[BATCH], :s] = main
    return n, marker


@compiled
def _emit(
    rows: IntArray, passes: IntArray, table: IntArray, offsets: IntArray, outputs: IntArray,
    costs: FloatArray,
) -> int:  # fmt: skip
    n, marker = 0, NONE
    for i in range(len(passes)):
        row = passes[i]
        if row[TURN] == 0:
            marker = NONE
        first, after = offsets[row[AT]], offsets[row[AT] + 1]
        if row[BACK]:
            n, marker = _backward(rows, n, row, first, after, table, outputs, costs, marker)
        else:
            n, marker = _forward(rows, n, row, first, after, table, outputs, costs[0], marker)
    return n


@compiled
def _connect(
    rows: IntArray, outputs: IntArray, cut_of: IntArray, links: IntArray, send: IntArray, ranks: int
) -> None:
    """Let the first operations of a pass wait for slices of the neighbouring stage.

    A forward slice needs all tokens before its end, a backward slice all after its beginning.
    """
    for n in range(len(rows)):
        row = rows[n]
        if row[WAITS] != EXTERNAL:
            continue
        back = row[ROLE] == GRADIENT
        place, batch, q = row[PLACE], row[MICRO_BATCH], row[SLICE]
        s = cut_of[1 if back else 0, place, batch]
        other = links[1 if back else 0, place]
        row[WAITS] = NONE
        if not back and other < 0:
            continue
        if back and other >= 0:
            cuts = cut_of[1, other, batch]
            row[WAITS] = outputs[2, other, batch, q * cuts // s]
        else:  # a forward's input, or the loss after this stage's own forward
            source = place if back else other
            cuts = cut_of[0, source, batch]
            needed = ((q + 1) * cuts + s - 1) // s - 1
            row[WAITS] = outputs[0, source, batch, needed]
            row[WAITS + 1] = outputs[1, source, batch, needed]
        if other >= 0 and other % ranks != place % ranks:
            row[DELAY] = send[other] // cuts
