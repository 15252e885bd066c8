"""Seconds of collectives: latency plus bytes over the slowest tier of the group's real placement.

Ranks are numbered as Megatron numbers them: TP innermost, then CP, DP, PP; for experts ETP, EP,
EDP, PP. A group is its `size` and the `stride` between its neighbours. Of a group, the members
inside one span of tier i number ``n_i = clip(span_i / stride, 1, size)``.

Every rank of a job is in such a group and all of them talk at once, so each gets its own share of
a shared network card: `LinkTier.bytes_per_second`. Fewer senders than share a card get more.
Arguments broadcast; results are float64 seconds.
"""

from __future__ import annotations

import numpy as np

from unjam.cost.batch import FloatArray, IntArray
from unjam.spec.cluster import ClusterSpec, LinkTier


def members(cluster: ClusterSpec, size: IntArray, stride: IntArray) -> list[IntArray]:
    """Members of a group inside one span of each tier, innermost first, each ``[N]``."""
    out = []
    for tier in cluster.tiers:
        inside = size if tier.span == 0 else np.clip(tier.span // stride, 1, size)
        out.append(np.asarray(inside, dtype=np.int64))
    return out


def transfer_seconds(tier: LinkTier, sent_bytes: FloatArray, steps: FloatArray) -> FloatArray:
    """`sent_bytes` per device over one tier in `steps` rounds; nothing to send takes no time.

    ``t = steps * latency + (bytes + half_bytes) / (efficiency * bandwidth)``: a message of
    ``half_bytes`` reaches half of the bandwidth (Hockney's n_1/2).
    """
    rate = tier.efficiency * tier.bytes_per_second
    seconds = steps * tier.latency_seconds + (sent_bytes + tier.half_bytes) / rate
    return np.where(sent_bytes > 0, seconds, 0.0)


def mesh_share(tier: LinkTier, fan: FloatArray | IntArray) -> FloatArray:
    """Share of a device's bandwidth that a group with `fan` members on this tier can use.

    In a full mesh every pair of devices has a link of its own, so a group reaches only the links
    between its members: ``(fan - 1) / (span - 1)``. A switch gives all of it to any group.
    """
    if not tier.one_to_one or tier.span <= 1:
        return np.ones(np.shape(fan))
    links = np.maximum(np.asarray(fan, dtype=np.float64) - 1, 1.0)
    return np.minimum(links / (tier.span - 1), 1.0)


def all_gather_seconds(
    cluster: ClusterSpec, total_bytes: FloatArray, size: IntArray, stride: IntArray
) -> FloatArray:
    """All-gather to `total_bytes` on every rank, outer tier first; a reduce-scatter costs the same.

    At tier i a rank goes from ``B / n_i`` to ``B / n_{i-1}`` bytes over ``n_i / n_{i-1}`` peers;
    the tiers pipeline, so the slowest one sets the time. A ring of f ranks takes f-1 steps; from
    16 ranks on libraries use trees, ``2 log2 f`` [Thakur et al. 2005; NCCL].
    """
    seconds = np.zeros(np.broadcast(total_bytes, size).shape)
    inner: IntArray = np.ones_like(size)
    for tier, inside in zip(cluster.tiers, members(cluster, size, stride), strict=True):
        outer = np.maximum(inside, inner)
        fan = outer / inner
        received = total_bytes / inner - total_bytes / outer
        steps = np.minimum(fan - 1, 2 * np.log2(np.maximum(fan, 1)) + 1)
        carried = received / mesh_share(tier, fan)
        seconds = np.maximum(seconds, transfer_seconds(tier, carried, steps))
        inner = outer
    return seconds


def all_reduce_seconds(
    cluster: ClusterSpec, total_bytes: FloatArray, size: IntArray, stride: IntArray
) -> FloatArray:
    """All-reduce = reduce-scatter + all-gather."""
    return 2 * all_gather_seconds(cluster, total_bytes, size, stride)


def all_to_all_seconds(
    cluster: ClusterSpec, sent_bytes: FloatArray, size: IntArray, stride: IntArray
) -> FloatArray:
    """Flat All-to-All in which every rank spreads `sent_bytes` evenly over the group, itself too.

    The tiers work side by side, so the slowest sets the time.
    """
    seconds = np.zeros(np.broadcast(sent_bytes, size).shape)
    inner: IntArray = np.ones_like(size)
    for tier, inside in zip(cluster.tiers, members(cluster, size, stride), strict=True):
        outer = np.maximum(inside, inner)
        steps = 1 + np.log2(np.maximum(outer / inner, 1))
        crossing = sent_bytes * (outer - inner) / size / mesh_share(tier, outer / inner)
        seconds = np.maximum(seconds, transfer_seconds(tier, crossing, steps))
        inner = outer
    return seconds


def point_to_point_seconds(
    cluster: ClusterSpec, sent_bytes: FloatArray, size: IntArray, stride: IntArray
) -> FloatArray:
    """A message between neighbours of a group, over the innermost tier that holds the whole group.

    The slowest link of a pipeline sets its pace, so all its sends cost as much as that one. On a
    full mesh of single links a pair of devices has only its own link.
    """
    seconds = np.zeros(np.broadcast(sent_bytes, size, stride).shape)
    found = np.zeros(seconds.shape, dtype=bool)
    for tier in cluster.tiers:
        here = ~found & ((tier.span == 0) | (size * stride <= tier.span))
        # The ranks of a stage send side by side; fewer than share a card have more of it each.
        senders = np.minimum(stride, tier.devices_per_nic)
        share = mesh_share(tier, np.full(seconds.shape, 2)) * tier.devices_per_nic / senders
        carried = sent_bytes / share
        there = transfer_seconds(tier, carried, np.ones(seconds.shape))
        seconds = np.where(here, there, seconds)
        found |= here
    return seconds
