"""Which layers each virtual stage holds, so that no stage keeps the others waiting.

Stages of a pipeline that overlaps forward and backward march in step, so the heaviest stage sets
the pace: the layers are cut where the largest stage is smallest, and as even as that allows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from unjam.cost.batch import FloatArray, IntArray, batch_of
from unjam.cost.layer import (
    COMPUTE_OPERATIONS,
    SHARD_OPERATIONS,
    SUB_OPERATIONS,
    LayerContext,
)
from unjam.spec.cluster import ClusterSpec
from unjam.spec.layout import Layout, format_layout
from unjam.spec.model import ModelSpec
from unjam.spec.strategy import JobSpec, Strategy
from unjam.twin.units import HEAD, MTP_HEAD, UnitCosts, unit_costs

# Stages are compared by the sum of their loads to this power: close to the maximum, yet it tells
# apart layouts with the same maximum.
POWER = 12.0


def balanced_layout(
    stages: int,
    ranks: int,
    layer_seconds: FloatArray,
    head_seconds: float,
    mtp_seconds: FloatArray,
    embedding_seconds: float,
) -> Layout:
    """Cut layers and MTP modules, in order, into `stages` stages.

    Dynamic programming over cuts minimises the 12-norm of the stages' loads exactly,
    ``O(stages * layers^2)`` once for all numbers of stages. All MTP modules stay in one stage of
    the last chunk, off rank 0.

    Args:
        stages: P * V.
        ranks: P.
        layer_seconds: load of each layer, ``[L]``.
        head_seconds: load of the output stage on top of its layers.
        mtp_seconds: load of each MTP module.
        embedding_seconds: load of the embedding on top of the first stage's layers.
    """
    with_head = _cut(stages, layer_seconds, embedding_seconds, head_seconds + mtp_seconds.sum())
    best = _tokens(with_head[1], len(mtp_seconds), stages - 1)
    apart = stages - 2  # the MTP modules may have the stage before the head to themselves
    allowed = ranks > 1 and apart % ranks != 0 and apart >= stages - ranks
    if len(mtp_seconds) and allowed:
        other = _cut_apart(stages, layer_seconds, embedding_seconds, head_seconds, mtp_seconds)
        if other[0] < with_head[0]:
            best = _tokens(other[1], len(mtp_seconds), apart)
    return best


def head_quarters(costs: UnitCosts, model: ModelSpec) -> IntArray:
    """Time of the output stage over a layer's, in quarters of a layer, per strategy, ``[N]``."""
    shown = [SUB_OPERATIONS.index(x) for x in (*COMPUTE_OPERATIONS, *SHARD_OPERATIONS)]
    total = costs.seconds[:, shown].sum(axis=1)
    mean = np.mean([total[u] for u in costs.kinds.of_layer], axis=0)
    head = total[HEAD] + len(model.mtp) * total[MTP_HEAD]
    return np.asarray(np.round(4 * head / np.maximum(mean, 1e-12)), dtype=np.int64)


@lru_cache(maxsize=4096)
def stage_layout(layers: int, mtp: int, pp: int, vpp: int, head_quarters: int) -> Layout:
    """Layers of each stage, balanced with the output stage worth ``head_quarters / 4`` layers.

    An MTP module counts as one layer, the embedding as a tenth.
    """
    return balanced_layout(pp * vpp, pp, np.ones(layers), head_quarters / 4, np.ones(mtp), 0.1)


def strategy_layout(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, strategy: Strategy
) -> str:
    """The layout that the search gives to `strategy`."""
    costs = unit_costs(LayerContext(model, cluster, job, batch_of([strategy])))
    quarters = int(head_quarters(costs, model)[0])
    layers, mtp = len(model.layers), len(model.mtp)
    return format_layout(stage_layout(layers, mtp, strategy.pp, strategy.vpp, quarters))


def _cut(stages: int, layers: FloatArray, first: float, last: float) -> tuple[float, list[int]]:
    """Cost and layers per stage of the best cut; `first` and `last` load the outer stages."""
    table, choice = _prefixes(1 << (stages - 1).bit_length(), tuple(layers.tolist()), first)
    own = last + (first if stages == 1 else 0.0)
    behind = layers.sum() - np.concatenate([[0.0], np.cumsum(layers)])
    cost = table[stages - 1] + np.maximum(behind + own, 0.0) ** POWER
    begin = int(cost.argmin())
    return float(cost[begin]), [*_walk(choice, stages - 1, begin), len(layers) - begin]


def _cut_apart(
    stages: int, layers: FloatArray, first: float, head: float, mtp: FloatArray
) -> tuple[float, list[int]]:
    """The same with the MTP modules on the last stage but one and no layer behind them."""
    cost, counts = _cut(stages - 1, layers, first, float(mtp.sum()))
    return cost + head**POWER, [*counts, 0]


@lru_cache(maxsize=64)
def _prefixes(
    stages: int, layers: tuple[float, ...], first: float
) -> tuple[FloatArray, FloatArray]:
    """``table[s, j]``: cost of the first s stages with the first j layers; and the best cuts.

    One table serves every smaller number of stages and every load of the last one.
    """
    n = len(layers)
    total = np.concatenate([[0.0], np.cumsum(layers)])
    load = total[None, :] - total[:, None]  # [i, j]: layers i to j-1
    unordered = np.tril(np.ones((n + 1, n + 1), dtype=bool), -1)
    cost = np.where(unordered, np.inf, np.abs(load) ** POWER)
    table = np.full((stages + 1, n + 1), np.inf)
    choice = np.zeros((stages + 1, n + 1))
    table[0, 0] = 0.0
    table[1] = np.maximum(total + first, 0.0) ** POWER
    for s in range(1, stages):
        options = table[s][:, None] + cost
        choice[s + 1] = options.argmin(axis=0)
        table[s + 1] = options.min(axis=0)
    return table, choice


def _walk(choice: FloatArray, stages: int, layers: int) -> list[int]:
    counts, end = [], layers
    for s in range(stages, 0, -1):
        begin = int(choice[s, end])
        counts.append(end - begin)
        end = begin
    return counts[::-1]


def _tokens(counts: list[int], mtp: int, mtp_stage: int) -> Layout:
    stages = [["t"] * n for n in counts]
    stages[0].insert(0, "E")
    stages[mtp_stage] += ["m"] * mtp
    stages[-1].append("L")
    return tuple(tuple(x) for x in stages)
