"""Seconds of token dispatch and combine between EP ranks, split by link tier.

Copies of a token that cross nodes, N nodes in the EP group, top-k routing over E experts:
flat ``k (N-1)/N``; hierarchical all-gather ``N-1``; hierarchical de-duplicated
``(N-1) * P(a node is needed)``. For EP32 on 4 nodes of 8, top-8 of 256: 6.00 / 3.00 / 2.71.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, log

import numpy as np

from unjam.cost.batch import Batch, FloatArray, IntArray
from unjam.cost.compute import BF16_BYTES
from unjam.cost.network import (
    all_gather_seconds,
    all_to_all_seconds,
    members,
    mesh_share,
    transfer_seconds,
)
from unjam.spec.cluster import ClusterSpec
from unjam.spec.model import MoE
from unjam.spec.strategy import DISPATCHERS


@dataclass(frozen=True)
class DispatchSeconds:
    """One dispatch (a combine costs the same), ``[N]`` each: they run one after the other.

    Attributes:
        inter: between nodes.
        intra: inside the node (and the gather over expert tensor parallelism).
    """

    inter: FloatArray
    intra: FloatArray

    @property
    def total(self) -> FloatArray:
        """Both, one after the other."""
        return self.inter + self.intra


def rank_imbalance(moe: MoE, ep: IntArray, imbalance: float) -> FloatArray:
    """Tokens of the heaviest EP rank over the mean, from those of the heaviest expert.

    With E independent expert loads the largest lies ``c sqrt(2 ln E)`` above the mean; the sums of
    E/EP of them spread by ``c sqrt(EP/E)`` and their largest lies ``sqrt(2 ln EP)`` of that above:
    ``1 + (x - 1) sqrt(EP/E * ln EP / ln E)``.
    """
    if moe.experts <= 1:
        return np.ones(ep.shape)
    spread = ep / moe.experts * np.log(ep) / log(moe.experts)
    return np.asarray(1 + (imbalance - 1) * np.sqrt(spread))


def node_needed(moe: MoE, nodes: int) -> float:
    """Probability that a token needs at least one expert of a given node, routing uniform.

    Under group-limited routing the token first picks `top_groups` of `groups` groups, then its
    experts among theirs. Experts lie contiguously on the nodes.
    """
    if nodes <= 1:
        return 1.0
    per_node = moe.experts / nodes
    total = 0.0
    # A node that is smaller than a group sees part of one group; a larger one sees several.
    seen_groups = max(moe.groups // nodes, 1)
    per_group_seen = per_node / seen_groups
    allowed = moe.experts * moe.top_groups // moe.groups
    for chosen in range(min(seen_groups, moe.top_groups) + 1):
        ways = comb(seen_groups, chosen) * comb(moe.groups - seen_groups, moe.top_groups - chosen)
        here = round(chosen * per_group_seen)
        missed = comb(max(allowed - here, 0), moe.top_k) / comb(allowed, moe.top_k)
        total += ways / comb(moe.groups, moe.top_groups) * (1 - missed)
    return total


def cross_node_copies(moe: MoE, nodes: IntArray, dispatcher: IntArray) -> FloatArray:
    """Copies of each token that cross to another node, ``[N]``."""
    needed = {int(n): node_needed(moe, int(n)) for n in np.unique(nodes)}
    dedup = (nodes - 1) * np.array([needed[int(n)] for n in nodes.ravel()]).reshape(nodes.shape)
    flat = moe.top_k * (nodes - 1) / nodes
    table = {"flat": flat, "allgather": (nodes - 1).astype(float), "dedup": dedup}
    return np.choose(dispatcher, [table[x] for x in DISPATCHERS])


def forwarded_rows(cluster: ClusterSpec, moe: MoE, batch: Batch, tokens: FloatArray) -> FloatArray:
    """Token rows that a hierarchical dispatcher handles besides those of a flat one, ``[N]``.

    Copies that cross nodes arrive at a rank of the node that needs them, which reads them again to
    pass them on; de-duplication also writes them into a send buffer of its own first.
    """
    local = members(cluster, batch.ep, batch.etp)[0]
    nodes = np.maximum(batch.ep // local, 1)
    times = np.array([{"flat": 0, "allgather": 1, "dedup": 2}[x] for x in DISPATCHERS])
    copies = cross_node_copies(moe, nodes, batch.dispatcher)
    return np.asarray(tokens * copies * times[batch.dispatcher])


def dispatch_seconds(
    cluster: ClusterSpec,
    moe: MoE,
    hidden: int,
    batch: Batch,
    tokens: FloatArray,
    imbalance: float,
) -> DispatchSeconds:
    """Seconds to bring `tokens` of each rank to their experts (or back).

    Everyone waits for the heaviest receiver: an EP rank in a flat All-to-All and inside the node, a
    node between nodes where tokens are de-duplicated; an all-gather is even, however they are
    routed.

    Args:
        cluster: the cluster.
        moe: the layer.
        hidden: width D of a token.
        batch: strategies.
        tokens: tokens per rank before dispatch, ``[N]``.
        imbalance: max/mean of the tokens that experts receive.
    """
    even = tokens * hidden * BF16_BYTES
    row = even * rank_imbalance(moe, batch.ep, imbalance)
    local = members(cluster, batch.ep, batch.etp)[0]
    nodes = np.maximum(batch.ep // local, 1)
    copies = cross_node_copies(moe, nodes, batch.dispatcher)
    is_gather = batch.dispatcher == DISPATCHERS.index("allgather")
    skew = np.where(is_gather, 1.0, rank_imbalance(moe, nodes, imbalance))
    across = _outer_seconds(cluster, even * skew * copies, batch, local)
    # Inside the node every copy still has to reach its device, whichever way it came.
    inner_tier = cluster.tiers[0]
    within = row * moe.top_k * (local - 1) / local / mesh_share(inner_tier, local)
    steps = 1 + np.log2(np.maximum(local, 1))
    inside = transfer_seconds(inner_tier, within, steps)
    flat = all_to_all_seconds(cluster, row * moe.top_k, batch.ep, batch.etp)
    is_flat = batch.dispatcher == DISPATCHERS.index("flat")
    spread = nodes > 1
    gather = all_gather_seconds(
        cluster, row * moe.top_k * batch.etp, batch.etp, np.ones_like(batch.etp)
    )
    # A flat All-to-All uses both tiers at once; it is booked on the one that binds.
    inter = np.where(is_flat, np.where(spread, flat, 0.0), across)
    intra = np.where(is_flat, np.where(spread, 0.0, flat), inside) + gather
    none = batch.ep * batch.etp == 1
    return DispatchSeconds(np.where(none, 0.0, inter), np.where(none, 0.0, intra))


def _outer_seconds(
    cluster: ClusterSpec, sent_bytes: FloatArray, batch: Batch, local: IntArray
) -> FloatArray:
    """Bytes beyond the node, spread over the outer tiers in proportion to the peers there."""
    seconds = np.zeros(len(batch))
    inner = local
    outside = np.maximum(batch.ep - local, 1)
    counts = members(cluster, batch.ep, batch.etp)
    for tier, inside in list(zip(cluster.tiers, counts, strict=True))[1:]:
        outer = np.maximum(inside, inner)
        share = sent_bytes * (outer - inner) / outside
        steps = 1 + np.log2(np.maximum(outer / inner, 1))
        seconds = np.maximum(seconds, transfer_seconds(tier, share, steps))
        inner = outer
    return seconds
