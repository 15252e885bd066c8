"""The event engine: executes the order lists of a schedule under given durations.

Every rank runs its slots strictly in order. A slot starts when the rank is free and its inputs
have arrived: a forward's from the stage before, a gradient from the stage after. Sends are posted
and do not block.
"""

from __future__ import annotations

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.schedule.ir import IntArray, Schedule
from unjam.spec.compiled import compiled
from unjam.twin.graph import SlotGraph, seconds_table, slot_graph
from unjam.twin.timeline import Durations, Timeline


@compiled
def _run(sequence: IntArray, edges: IntArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Start and end of every slot by number, ``[N + 1]``; nothing (0) is over at 0."""
    start, end = np.zeros(len(edges)), np.zeros(len(edges))
    for i in sequence:
        begin = max(end[edges[i, 0]], seconds[edges[i, 6]])
        begin = max(begin, start[edges[i, 2]] + seconds[edges[i, 3]])
        begin = max(begin, start[edges[i, 4]] + seconds[edges[i, 5]])
        start[i], end[i] = begin, begin + seconds[edges[i, 1]]
    return start, end


def _simulate(graph: SlotGraph, durations: Durations) -> tuple[FloatArray, FloatArray]:
    start, end = _run(graph.sequence, graph.edges, seconds_table(durations))
    return start[1:], end[1:]


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """When every slot runs.

    Raises:
        InputError: the orders deadlock; names the first rank that is stuck and its slot.
    """
    graph = slot_graph(schedule)
    start, end = _simulate(graph, durations)
    cuts = graph.offsets[1:-1]
    return Timeline(schedule, tuple(np.split(start, cuts)), tuple(np.split(end, cuts)))


def simulate_seconds(
    schedule: Schedule, durations: Durations
) -> tuple[float, FloatArray, FloatArray]:
    """The same without the timeline, for searches.

    Returns:
        Seconds of the pipeline, busy seconds per rank ``[P]``, and the end of the last backward of
        each rank and chunk ``[P, V]``, from which its gradients can be reduced.
    """
    graph = slot_graph(schedule)
    start, end = _simulate(graph, durations)
    busy = np.add.reduceat(end - start, graph.offsets[:-1])
    return float(end.max()), busy, np.where(graph.ends >= 0, end[graph.ends], 0.0)
