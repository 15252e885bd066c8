"""Lower bounds that no strategy of a group can beat, vectorised over the group.

A group shares pipeline shape, micro-batch count, schedule and layout, so that its stages are the
same sums over units. Both bounds are admissible: they never exceed what the simulation yields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.batch import Batch, FloatArray
from unjam.cost.layer import EP_OPERATIONS, SUB_OPERATIONS
from unjam.cost.memory import FRAGMENTATION, ParameterBuckets, static_bytes
from unjam.schedule.ir import Kind, Schedule
from unjam.spec.cluster import ClusterSpec
from unjam.spec.layout import Layout
from unjam.spec.strategy import OVERLAPPING, JobSpec
from unjam.twin.units import UnitCosts, stage_units

_FORWARD = ("A_f", "shard_A_f", "D_f", "E_f", "shard_E_f", "C_f")
_WEIGHT = ("A_w", "E_w")
_GRADIENT = tuple(x for x in SUB_OPERATIONS if x not in {*_FORWARD, *_WEIGHT})


@dataclass(frozen=True)
class Bounds:
    """Bounds per strategy of the group, ``[N]`` each.

    Attributes:
        seconds: no step is faster.
        bytes: no fullest device holds less.
    """

    seconds: FloatArray
    bytes: FloatArray


def group_bounds(
    cluster: ClusterSpec,
    job: JobSpec,
    batch: Batch,
    costs: UnitCosts,
    schedule: Schedule,
    micro_batches: int,
    layout: Layout,
) -> Bounds:
    """Bounds of the strategies in `batch`, which all have this schedule and layout.

    Args:
        cluster: the cluster.
        job: the job.
        batch: N strategies.
        costs: their unit costs.
        schedule: their schedule; as long as its warm-up is whole, of fewer micro-batches.
        micro_batches: M.
        layout: stages as tuples of E, t, m, L.
    """
    stages = _stage_counts(costs, layout)
    ranks = stages.reshape(schedule.chunks, schedule.ranks, -1)
    return Bounds(
        _seconds(costs, schedule, micro_batches, ranks),
        _bytes(cluster, job, batch, costs, schedule, ranks),
    )


def _stage_counts(costs: UnitCosts, layout: Layout) -> FloatArray:
    """How often each unit occurs in each stage, ``[P*V, U]``."""
    units, offsets = stage_units(costs.kinds, layout)
    counts = np.zeros((len(layout), costs.kinds.count))
    stage = np.repeat(np.arange(len(layout)), np.diff(offsets))
    np.add.at(counts, (stage, units), 1.0)
    return counts


def _seconds(
    costs: UnitCosts, schedule: Schedule, micro_batches: int, ranks: FloatArray
) -> FloatArray:
    """Rank r cannot start before r first forwards and cannot end before r last gradients.

    ``T >= max_r sum_{q<r} F_q + load_r - W_r + sum_{q<r} I_q``, with F, I, W of chunk 0; W is
    subtracted for r > 0 where it trails the send. In a pair EP communication may be hidden, so an
    overlapping schedule's load counts computation, and communication in its lone forwards alone.
    """
    forward, gradient, weight = (_sum(costs, x) for x in (_FORWARD, _GRADIENT, _WEIGHT))
    if schedule.name in OVERLAPPING:
        hidden = _sum(costs, EP_OPERATIONS)
        lone = np.einsum("rv,vru->ru", _warm_up_counts(schedule), ranks)
        alone = lone @ _sum(costs, ("D_f", "C_f"))
        load = micro_batches * (ranks.sum(axis=0) @ (forward + gradient + weight - hidden)) + alone
        load[1:] -= ranks[0, 1:] @ weight
    else:
        gradient = gradient + weight
        load = micro_batches * (ranks.sum(axis=0) @ (forward + gradient))
    chain = np.cumsum(ranks[0] @ (forward + gradient), axis=0)
    before = np.concatenate([np.zeros((1, chain.shape[1])), chain[:-1]])
    return np.asarray((load + before).max(axis=0))


def _sum(costs: UnitCosts, names: tuple[str, ...]) -> FloatArray:
    """Seconds of some sub-operations together, ``[U, N]``."""
    columns = [SUB_OPERATIONS.index(x) for x in names]
    return np.asarray(costs.seconds[:, columns].sum(axis=1))


def _bytes(
    cluster: ClusterSpec,
    job: JobSpec,
    batch: Batch,
    costs: UnitCosts,
    schedule: Schedule,
    ranks: FloatArray,
) -> FloatArray:
    """Static bytes, and the activations held once a rank's lone first forwards have run."""
    held = _warm_up_counts(schedule)
    peak = np.zeros(len(batch))
    for r in range(schedule.ranks):
        params = ParameterBuckets(
            *(ranks[:, r].sum(axis=0) @ x for x in (costs.dense, costs.routed))
        )
        fixed = static_bytes(params, batch, job.dtype)
        static = fixed.weights + fixed.gradients + fixed.optimizer
        kept = (held[r] @ ranks[:, r]) @ costs.kept * (1 + FRAGMENTATION)
        peak = np.maximum(peak, static + kept)
    return np.asarray(peak + cluster.device.reserved_bytes)


def _warm_up_counts(schedule: Schedule) -> FloatArray:
    """Forwards of each chunk that each rank runs before its first backward, ``[P, V]``."""
    counts = np.zeros((schedule.ranks, schedule.chunks))
    for r, order in enumerate(schedule.orders):
        others = np.flatnonzero(order[:, 0] != Kind.F)
        first = int(others[0]) if len(others) else len(order)
        counts[r] = np.bincount(order[:first, 1], minlength=schedule.chunks)
    return counts
