"""The shortest possible step of a small schedule, by mixed-integer programming.

A reference for tests and benchmarks: it says how far the orders of `unjam.schedule.adaptive_solver`
are from the best. The problem is a job shop with delays [Manne 1960]: start times ``s``, and for
every two operations of a stream a binary that says which comes first,

    s_j >= s_i + p_i + d_ij                  i must be over before j
    s_j >= s_i + p_i - B (1 - y_ij)          i before j on their stream, or
    s_i >= s_j + p_j - B y_ij                j before i
    T   >= s_i + p_i                         minimise T

Passes may run in any order here, and memory is not limited. HiGHS solves it [Huangfu, Hall 2018].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.schedule.operations import (
    DELAY,
    MICRO_BATCH,
    PLACE,
    STREAM,
    TICKS,
    WAITS,
    Operations,
)
from unjam.schedule.overlap import FloatArray, IntArray
from unjam.spec.errors import InputError


@dataclass(frozen=True, slots=True)
class ExactStep:
    """What is known of the shortest step.

    Attributes:
        seconds: shortest step found.
        bound: no step is shorter.
        binaries: pairs of operations whose order was open.
    """

    seconds: float
    bound: float
    binaries: int


def exact_step(
    operations: Operations, at_most: float = np.inf, time_limit: float = 60.0
) -> ExactStep:
    """Solve for the shortest step of `operations`.

    Args:
        operations: the operations; a few dozen.
        at_most: seconds of a step that is known to be possible; a good one saves time.
        time_limit: seconds after which the best known step and bound are returned.

    Raises:
        InputError: scipy is not installed, or no step within `at_most` exists.
    """
    try:
        from scipy.optimize import Bounds, milp
    except ImportError as error:  # the base install does without
        raise InputError("exact reference: needs scipy; pip install 'unjam[exact]'") from error
    rows = operations.rows
    seconds: FloatArray = np.float64(operations.tick_seconds) * rows[:, TICKS]
    waits = _waits(rows, operations)
    gaps = _longest_paths(len(rows), waits, seconds)
    horizon = min(at_most * (1 + 1e-9), float(seconds.sum() + waits[:, 2].sum()))
    ordered, pairs = _open_pairs(rows, seconds, gaps, horizon)
    n, unit = len(rows), 1.0 / horizon  # times between 0 and 1 keep the solver's tolerances small
    constraints = _constraints(n, waits, ordered, pairs, seconds, unit)
    heads = np.maximum(gaps.max(axis=0), 0.0)
    low = np.concatenate([heads * unit, np.zeros(len(pairs)), [0.0]])
    high = np.concatenate([1.0 - seconds * unit, np.ones(len(pairs)), [1.0]])
    cost = np.zeros(n + len(pairs) + 1)
    cost[-1] = 1.0
    whole = np.concatenate([np.zeros(n), np.ones(len(pairs)), [0.0]])
    result = milp(
        cost,
        constraints=constraints,
        bounds=Bounds(low, np.maximum(low, high)),
        integrality=whole,
        options={"time_limit": time_limit, "mip_rel_gap": 1e-6},
    )
    if result.x is None:
        raise InputError(f"exact reference: {result.message}")
    bound = result.mip_dual_bound if result.mip_dual_bound is not None else result.fun
    return ExactStep(float(result.fun) * horizon, float(bound) * horizon, len(pairs))


def _waits(rows: IntArray, operations: Operations) -> FloatArray:
    """Before, after and delay of every wait, but of those that keep passes in order; ``[W, 3]``."""
    out = []
    ranks = operations.schedule.ranks
    for k in range(4):
        after = np.flatnonzero(rows[:, WAITS + k] >= 0)
        before = rows[after, WAITS + k]
        same_pass = rows[before][:, [PLACE, MICRO_BATCH]] == rows[after][:, [PLACE, MICRO_BATCH]]
        data = same_pass.all(axis=1) | (rows[before, PLACE] % ranks != rows[after, PLACE] % ranks)
        data |= k < 2
        delay = rows[after, DELAY] * operations.tick_seconds * (k < 2)
        out.append(np.stack([before, after, delay], axis=1)[data])
    return np.concatenate(out)


def _longest_paths(n: int, waits: FloatArray, seconds: FloatArray) -> FloatArray:
    """Least seconds from the start of i to the start of j, ``[n, n]``; -inf = free."""
    gaps = np.full((n, n), -np.inf)
    np.fill_diagonal(gaps, 0.0)
    for before, after, delay in waits:
        i, j = int(before), int(after)
        gaps[i, j] = max(gaps[i, j], seconds[i] + delay)
    for k in range(n):  # Floyd-Warshall on an acyclic graph
        np.maximum(gaps, gaps[:, k : k + 1] + gaps[k : k + 1], out=gaps)
    return gaps


def _open_pairs(
    rows: IntArray, seconds: FloatArray, gaps: FloatArray, horizon: float
) -> tuple[IntArray, IntArray]:
    """Pairs of one stream: those that fit within the horizon in one order only, and in both."""
    heads = np.maximum(gaps.max(axis=0), 0.0)
    tails = (gaps + seconds[None, :]).max(axis=1) - seconds  # after i's end, to the last end
    ordered, free = [], []
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            apart = rows[i, STREAM] != rows[j, STREAM] or not (seconds[i] > 0 and seconds[j] > 0)
            if apart or gaps[i, j] >= seconds[i] - 1e-12 or gaps[j, i] >= seconds[j] - 1e-12:
                continue
            total = seconds[i] + seconds[j]
            if heads[i] + total + tails[j] > horizon * (1 + 1e-9):
                ordered.append((j, i))
            elif heads[j] + total + tails[i] > horizon * (1 + 1e-9):
                ordered.append((i, j))
            else:
                free.append((i, j))
    shape = (-1, 2)
    return np.array(ordered, dtype=np.int64).reshape(shape), np.array(free, np.int64).reshape(shape)


def _constraints(
    n: int, waits: FloatArray, ordered: IntArray, pairs: IntArray, seconds: FloatArray, unit: float
) -> object:
    """Rows of ``A x >= b`` for x = starts, binaries, T; times in units of the horizon."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import coo_matrix

    p = seconds * unit
    entries: list[tuple[int, int, float]] = []
    least: list[float] = []

    def add(row: dict[int, float], bound: float) -> None:
        entries.extend((len(least), column, value) for column, value in row.items())
        least.append(bound)

    for before, after, delay in waits:
        add({int(after): 1.0, int(before): -1.0}, p[int(before)] + delay * unit)
    for i, j in ordered.tolist():
        add({j: 1.0, i: -1.0}, p[i])
    for k, (i, j) in enumerate(pairs.tolist()):
        add({j: 1.0, i: -1.0, n + k: -1.0}, p[i] - 1.0)
        add({i: 1.0, j: -1.0, n + k: 1.0}, p[j])
    last = n + len(pairs)
    for i in range(n):
        add({last: 1.0, i: -1.0}, p[i])
    row, column, value = zip(*entries, strict=True)
    matrix = coo_matrix((value, (row, column)), shape=(len(least), last + 1))
    return LinearConstraint(matrix.tocsr(), np.array(least), np.inf)
