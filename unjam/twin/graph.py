"""A schedule as a graph of slots: who waits for whom, and a sequence in which all can run.

It depends on the schedule alone, so it is made once; every simulation is one sweep over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from unjam.cost.batch import FloatArray
from unjam.schedule.ir import IntArray, Kind, Schedule
from unjam.spec.compiled import compiled
from unjam.spec.errors import InputError
from unjam.twin.timeline import Durations

OffsetArray = npt.NDArray[np.int64]

NOTHING, NEVER = 0, -1  # slots to wait for: none; one that the schedule does not have


@dataclass(frozen=True, eq=False)
class SlotGraph:
    """All slots of a schedule, rank after rank; slot i is number i + 1, and 0 is `NOTHING`.

    Attributes:
        slots: the orders, ``[N, 5]``.
        offsets: rank r has ``slots[offsets[r]:offsets[r+1]]``.
        ends: index of the last slot with a backward of each rank and chunk, ``[P, V]``; -1 = none.
        sequence: slot numbers, each after all that it waits for, ``[N]``.
        edges: by slot number, ``[N + 1, 7]``: the slot before on the rank; where `seconds_table`
            has the slot's length; the slot that sends its activation, and the table's place for how
            long after that slot's start it arrives; the same for its gradient; earliest start.
    """

    slots: IntArray
    offsets: OffsetArray
    ends: OffsetArray
    sequence: IntArray
    edges: IntArray


def seconds_table(durations: Durations) -> FloatArray:
    """Durations as one vector that `SlotGraph.edges` points into.

    For S stages and Q = P*V*V pairs: 0; lengths of F, I, W, B ``[S]`` and pairs ``[Q]``; time from
    start to arrival of activations and of gradients, each of lone passes ``[S]`` and pairs ``[Q]``;
    ready ``[S]``.
    """
    d = durations
    ranks, chunks = d.pair.shape[:2]
    way = d.send.reshape(chunks, ranks).T
    parts = (
        np.zeros(1),
        *(d.forward, d.input_gradient, d.weight_gradient, d.input_gradient + d.weight_gradient),
        d.pair,
        *(d.forward + d.send, d.pair_forward_sent + way[:, :, None]),
        *(d.input_gradient + d.send, d.pair_backward_sent + way[:, None, :]),
        d.ready,
    )
    return np.concatenate([x.ravel() for x in parts])


@dataclass(frozen=True, eq=False)
class _Columns:
    """What each slot runs, by slot number from 1; ``[N]`` each.

    Attributes:
        kind: its `Kind`.
        forward: whether it has a forward.
        gradient: whether it makes an input gradient.
        s: place of the forward or lone pass.
        m: its micro-batch.
        t: place of the backward.
        n: its micro-batch.
        pair: ``(rank * V + forward chunk) * V + backward chunk``.
    """

    kind: IntArray
    forward: npt.NDArray[np.bool_]
    gradient: npt.NDArray[np.bool_]
    s: IntArray
    m: IntArray
    t: IntArray
    n: IntArray
    pair: IntArray


def _columns(slots: IntArray, rank: IntArray, schedule: Schedule) -> _Columns:
    kind, v, m, w, n = slots.T
    paired = kind == Kind.FB
    back_chunk = np.where(paired, w, v)
    return _Columns(
        kind=kind,
        forward=paired | (kind == Kind.F),
        gradient=paired | (kind == Kind.B) | (kind == Kind.I),
        s=v * schedule.ranks + rank,
        m=m,
        t=back_chunk * schedule.ranks + rank,
        n=np.where(paired, n, m),
        pair=(rank * schedule.chunks + v) * schedule.chunks + back_chunk,
    )


@lru_cache(maxsize=128)
def slot_graph(schedule: Schedule) -> SlotGraph:
    """The graph of `schedule`; the same object gives the same graph.

    Raises:
        InputError: a pass is left out or runs twice, or the orders deadlock; names the pass, or the
            first rank that is stuck and its slot.
    """
    slots = np.ascontiguousarray(np.concatenate(schedule.orders), dtype=np.int32)
    sizes = [len(x) for x in schedule.orders]
    offsets = np.cumsum([0, *sizes]).astype(np.int64)
    rank = np.repeat(np.arange(schedule.ranks, dtype=np.int32), sizes)
    columns = _columns(slots, rank, schedule)
    _check_complete(columns, schedule)
    activation, gradient, own = _waits(columns, schedule)
    sequence, position = _sequence(np.stack([activation, gradient, own], axis=1), offsets)
    stuck = np.flatnonzero(position < offsets[1:])
    if len(stuck):
        raise InputError(_deadlock(schedule, int(stuck[0]), position - offsets[:-1]))
    before = np.arange(len(slots), dtype=np.int32)
    before[offsets[:-1][np.array(sizes) > 0]] = NOTHING
    places = _places(columns, schedule, activation, gradient)
    edges = np.zeros((len(slots) + 1, 7), dtype=np.int32)
    edges[1:] = np.stack([before, *places], axis=1)
    return SlotGraph(slots, offsets, _ends(columns, rank, schedule), sequence, edges)


def _check_complete(columns: _Columns, schedule: Schedule) -> None:
    """Every place runs F, I and W once of each of its micro-batches."""
    c, places = columns, schedule.ranks * schedule.chunks
    weight = c.gradient & (c.kind != Kind.I) | (c.kind == Kind.W)
    expected = np.zeros((places, schedule.micro_batches), dtype=np.int64)
    for place in range(places):
        mine = schedule.micro_batches_of(place // schedule.ranks)
        expected[place, mine.start : mine.stop] = 1
    for name, rows, s, m in (
        ("F", c.forward, c.s, c.m),
        ("I", c.gradient, c.t, c.n),
        ("W", weight, c.t, c.n),
    ):
        inside = (s[rows] >= 0) & (s[rows] < places) & (m[rows] >= 0)
        if not (inside & (m[rows] < schedule.micro_batches)).all():
            raise InputError(f"schedule {schedule.name}: {name} of a pass that does not exist")
        flat = s[rows].astype(np.int64) * schedule.micro_batches + m[rows]
        counts = np.bincount(flat, minlength=expected.size).reshape(expected.shape)
        if (counts != expected).any():
            place, micro_batch = np.argwhere(counts != expected)[0].tolist()
            times = counts[place, micro_batch]
            chunk, rank = divmod(place, schedule.ranks)
            what = f"{name} of rank {rank}, chunk {chunk}, micro-batch {micro_batch}"
            raise InputError(f"schedule {schedule.name}: {what} runs {times} times")


def _waits(columns: _Columns, schedule: Schedule) -> tuple[IntArray, IntArray, IntArray]:
    """Numbers of the slots that send each slot's activation and gradient, and of its own forward.

    A lone W waits for its own gradient instead. ``[N]`` each.
    """
    c, places = columns, schedule.ranks * schedule.chunks
    before, after = schedule.neighbours()
    number = np.arange(1, len(c.kind) + 1, dtype=np.int32)
    forward_of = np.full((places, schedule.micro_batches), NEVER, dtype=np.int32)
    gradient_of = forward_of.copy()
    forward_of[c.s[c.forward], c.m[c.forward]] = number[c.forward]
    gradient_of[c.t[c.gradient], c.n[c.gradient]] = number[c.gradient]
    receives = c.forward & (before[c.s] >= 0)
    activation = np.where(receives, forward_of[before[c.s], c.m], NOTHING)
    receives = c.gradient & (after[c.t] >= 0)
    gradient = np.where(receives, gradient_of[after[c.t], c.n], NOTHING)
    own = np.where(c.gradient, forward_of[c.t, c.n], NOTHING)
    own = np.where(c.kind == Kind.W, gradient_of[c.s, c.m], own)
    return activation, gradient, own


def _places(
    columns: _Columns, schedule: Schedule, activation: IntArray, gradient: IntArray
) -> tuple[IntArray, ...]:
    """The columns of `SlotGraph.edges` after the first: places in `seconds_table`."""
    c, stages = columns, schedule.ranks * schedule.chunks
    pairs = stages * schedule.chunks
    paired = c.kind == Kind.FB
    lengths, sent = 1, 1 + 4 * stages + pairs
    place_of = {Kind.F: 0, Kind.I: 1, Kind.W: 2, Kind.B: 3}
    row = np.zeros(len(Kind), dtype=np.int32)
    row[list(place_of)] = list(place_of.values())
    length = lengths + np.where(paired, 4 * stages + c.pair, row[c.kind] * stages + c.s)
    # By sender: how long after its start its activation or gradient arrives.
    arrives = sent + np.where(paired, stages + c.pair, c.s)
    arrives = np.concatenate([[0], arrives])
    size = stages + pairs
    activation_place = np.where(activation > 0, arrives[activation], 0)
    gradient_place = np.where(gradient > 0, size + arrives[gradient], 0)
    ready = np.where(c.forward, sent + 2 * size + c.s, 0)
    return length, activation, activation_place, gradient, gradient_place, ready


def _ends(columns: _Columns, rank: IntArray, schedule: Schedule) -> OffsetArray:
    """Index of the last slot with a backward of each rank and chunk, ``[P, V]``; -1 = none."""
    backward = np.flatnonzero(columns.kind != Kind.F)
    ends = np.full((schedule.ranks, schedule.chunks), -1, dtype=np.int64)
    chunk = columns.t // schedule.ranks
    np.maximum.at(ends, (rank[backward], chunk[backward]), backward)
    return ends


@compiled
def _sequence(waits: IntArray, offsets: OffsetArray) -> tuple[IntArray, OffsetArray]:
    """Run all ranks as far as they come: numbers of the slots run, and where each rank stopped."""
    done = np.zeros(len(waits) + 2, dtype=np.bool_)
    done[NOTHING] = True  # done[-1] stays False: NEVER
    sequence = np.empty(len(waits), dtype=np.int32)
    position = offsets[:-1].copy()
    count, moved = 0, True
    while moved:
        moved = False
        for rank in range(len(position)):
            for i in range(position[rank], offsets[rank + 1]):
                if not (done[waits[i, 0]] and done[waits[i, 1]] and done[waits[i, 2]]):
                    break
                done[i + 1] = moved = True
                sequence[count] = i + 1
                count += 1
                position[rank] = i + 1
    return sequence[:count], position


def _deadlock(schedule: Schedule, rank: int, position: OffsetArray) -> str:
    kind, chunk, micro_batch, *_ = schedule.orders[rank][position[rank]].tolist()
    return (
        f"schedule {schedule.name}: deadlock: rank {rank} waits at slot {position[rank]} "
        f"({Kind(kind).name} of chunk {chunk}, micro-batch {micro_batch})"
    )
