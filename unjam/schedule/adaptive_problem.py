"""What the adaptive solver is given, and which pass orders fit into memory.

An order fits if each rank can hold what it has in flight. Where it cannot, the rank's chunks that
save enough for the least time recompute their activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from unjam.schedule.in_flight import in_flight
from unjam.schedule.ir import Schedule
from unjam.schedule.overlap import FloatArray, LayerTable, SubOperation
from unjam.schedule.registry import build_schedule
from unjam.spec.errors import InputError

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Recomputation:
    """What it costs and saves to compute a chunk's activations again in its backward.

    Attributes:
        seconds: added to the backward of each layer, ``[L]``.
        size: what one micro-batch then leaves at each place, ``[P*V]``.
    """

    seconds: FloatArray
    size: FloatArray


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be scheduled.

    Attributes:
        ranks: P.
        chunks: V.
        micro_batches: M.
        tables: seconds of all layers by dispatcher; all with the same ``offsets`` and ``size``.
        capacity: what each rank may hold, ``[P]``, in the unit of ``size``; None = what the pass
            order holds at most, and one rank-stage more.
        recomputation: None = never.
        slice_cost: see `Slicing`.
        most_slices: no pass is cut finer.
    """

    ranks: int
    chunks: int
    micro_batches: int
    tables: Mapping[str, LayerTable]
    capacity: FloatArray | None = None
    recomputation: Recomputation | None = None
    slice_cost: float = 0.0
    most_slices: int = 8


@dataclass(frozen=True, eq=False)
class Fit:
    """A pass order that fits.

    Attributes:
        schedule: the order.
        recomputed: places that must recompute, ``[P*V]``.
        capacity: what each rank may hold, ``[P]``.
    """

    schedule: Schedule
    recomputed: BoolArray
    capacity: FloatArray


def check_problem(problem: Problem) -> None:
    """Raise `InputError` unless tables have the right shapes and values."""
    places = problem.ranks * problem.chunks
    if not problem.tables:
        raise InputError("adaptive schedule: tables are empty; give the seconds of one dispatcher")
    if problem.most_slices < 1 or not problem.slice_cost >= 0:
        raise InputError("adaptive schedule: slices must be at least 1, their cost at least 0")
    for name, table in problem.tables.items():
        shape = (len(table.offsets), len(table.send), len(table.size))
        if shape != (places + 1, places, places) or table.seconds.shape[1:] != (len(SubOperation),):
            raise InputError(f"adaptive schedule: table {name} does not have {places} places")
        for what in (table.seconds, table.send, table.size):
            if not np.isfinite(what).all() or (what < 0).any():
                raise InputError(f"adaptive schedule: table {name} has a negative or unknown value")


def recomputing(table: LayerTable, problem: Problem, places: BoolArray) -> LayerTable:
    """The table if `places` recompute: longer backwards, smaller activations."""
    if problem.recomputation is None or not places.any():
        return table
    layers = np.repeat(places, np.diff(table.offsets))
    seconds = table.seconds.copy()
    # Activations are needed by the first computation of a layer's backward.
    first = np.where(seconds[:, SubOperation.E_B] > 0, SubOperation.E_B, SubOperation.A_B)
    seconds[layers, first[layers]] += problem.recomputation.seconds[layers]
    size = np.where(places, problem.recomputation.size, table.size)
    return LayerTable(seconds, table.offsets, table.send, size)


def fitting_orders(problem: Problem) -> dict[str, Fit]:
    """Pass orders that fit, by name; Adaptive Pipe's holds most and comes first.

    Raises:
        InputError: none fits; names the rank, what it needs and what it has.
    """
    table = next(iter(problem.tables.values()))
    shape = (problem.ranks, problem.chunks, problem.micro_batches)
    fits: dict[str, Fit] = {}
    misfit: InputError | None = None
    for name in ("adaptive", "1f1b" if problem.chunks == 1 else "interleaved"):
        try:
            schedule = build_schedule(name, *shape)
            capacity = problem.capacity
            if capacity is None:
                capacity = _default_capacity(build_schedule("adaptive", *shape), table)
            fits[name] = Fit(schedule, _recomputed(problem, schedule, capacity), capacity)
        except InputError as error:
            misfit = error
    if not fits and misfit:
        raise misfit
    return fits


def _default_capacity(schedule: Schedule, table: LayerTable) -> FloatArray:
    """What the fullest rank of a schedule holds, and the largest rank-stage more, ``[P]``."""
    peak = max(x.max(initial=0.0) for x in in_flight(schedule, table.size))
    stage = table.size.reshape(-1, schedule.ranks).sum(axis=0).max()
    return np.full(schedule.ranks, peak + stage)


def _recomputed(problem: Problem, schedule: Schedule, capacity: FloatArray) -> BoolArray:
    """Places that recompute, ``[P*V]``: on each rank those that fit for the least added time."""
    table = next(iter(problem.tables.values()))
    ranks, chunks = problem.ranks, problem.chunks
    ones = np.eye(chunks).repeat(ranks, axis=1)  # each chunk alone counts 1
    counts = [in_flight(schedule, x) for x in ones]
    out = np.zeros((chunks, ranks), dtype=np.bool_)
    small, added = table.size, np.zeros(ranks * chunks)
    if problem.recomputation is not None:
        small = problem.recomputation.size
        running = np.concatenate([[0.0], np.cumsum(problem.recomputation.seconds)])
        added = np.diff(running[table.offsets])
    for rank in range(ranks):
        held = np.stack([x[rank] for x in counts], axis=1)
        full, less, cost = (x.reshape(chunks, ranks)[:, rank] for x in (table.size, small, added))
        subsets = _subsets(full - less, cost, problem.recomputation is not None)
        peaks = (held @ np.where(subsets, less, full).T).max(axis=0)
        fit = np.flatnonzero(peaks <= capacity[rank] * (1 + 1e-9))
        if not len(fit):
            raise InputError(
                f"schedule {schedule.name}: rank {rank} holds {peaks.min():g} of activations at "
                f"least, {capacity[rank]:g} fit; give more memory, fewer chunks or recompute more"
            )
        out[:, rank] = subsets[fit[(subsets[fit] @ cost).argmin()]]
    return out.ravel()


def _subsets(saved: FloatArray, cost: FloatArray, allowed: bool) -> BoolArray:
    """Sets of chunks that may recompute, ``[sets, V]``: all, or of many chunks best prefixes."""
    chunks = len(saved)
    if not allowed:
        return np.zeros((1, chunks), dtype=np.bool_)
    if chunks <= 8:
        return np.array(list(product((False, True), repeat=chunks)))
    order = np.argsort(-saved / np.maximum(cost, 1e-300), kind="stable")
    position = np.argsort(order, kind="stable")
    return np.asarray(position[None, :] < np.arange(chunks + 1)[:, None])
