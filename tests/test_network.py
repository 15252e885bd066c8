"""Collectives against closed forms on round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_cluster, small_model
from hypothesis import given
from hypothesis import strategies as st

from unjam.cost.batch import batch_of
from unjam.cost.dispatch import cross_node_copies, dispatch_seconds, node_needed, rank_imbalance
from unjam.cost.network import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    members,
    point_to_point_seconds,
)
from unjam.spec.cluster import LinkTier
from unjam.spec.model import Linear, MoE
from unjam.spec.strategy import DISPATCHERS, Strategy


def one(x: float) -> np.ndarray:
    return np.array([x], dtype=np.int64)


def moe(experts: int, top_k: int, groups: int = 1, top_groups: int = 1) -> MoE:
    router = Linear("router", 8, experts)
    return MoE(experts, top_k, (Linear("up", 8, 8),), 8, router, groups, top_groups)


def test_members_follow_the_stride() -> None:
    inside, everywhere = members(small_cluster(), one(32), one(4))
    assert inside.tolist() == [2]
    assert everywhere.tolist() == [32]


def test_all_gather_inside_a_node_is_the_ring_formula() -> None:
    seconds = all_gather_seconds(small_cluster(), np.array([8e9]), one(8), one(1))
    assert seconds[0] == pytest.approx(8e9 * 7 / 8 / 200e9)


def test_all_gather_across_nodes_is_bound_by_the_card() -> None:
    # 4 nodes of 8: each device fetches 3 of 32 shards from other nodes, 7/8 of all from inside.
    seconds = all_gather_seconds(small_cluster(), np.array([32e9]), one(32), one(1))
    assert seconds[0] == pytest.approx(max(3e9 / 25e9, 28e9 / 200e9))


def test_all_reduce_is_two_all_gathers() -> None:
    args = (small_cluster(), np.array([1e9]), one(16), one(8))
    assert all_reduce_seconds(*args) == pytest.approx(2 * all_gather_seconds(*args))


def test_flat_all_to_all_takes_the_slowest_tier() -> None:
    # Of 16 destinations over 2 nodes, 8 lie outside and 7 inside.
    seconds = all_to_all_seconds(small_cluster(), np.array([16e9]), one(16), one(1))
    assert seconds[0] == pytest.approx(max(8e9 / 25e9, 7e9 / 200e9))


def test_a_full_mesh_gives_a_pair_its_own_link() -> None:
    tiers = (
        LinkTier("mesh", 8, 196e9, 1.0, 0.0, 0.0, one_to_one=True),
        LinkTier("outside", 0, 25e9, 1.0, 0.0, 0.0),
    )
    cluster = small_cluster(tiers=tiers)
    near = point_to_point_seconds(cluster, np.array([28e9]), one(8), one(1))
    far = point_to_point_seconds(cluster, np.array([28e9]), one(2), one(8))
    # Ranks 0, 4 share a node, 4 and 8 do not: the pipeline is as slow as its slowest link.
    mixed = point_to_point_seconds(cluster, np.array([28e9]), one(4), one(4))
    assert mixed == far
    shared = LinkTier("outside", 0, 25e9, 1.0, 0.0, 0.0, devices_per_nic=2)
    cluster = small_cluster(tiers=(tiers[0], shared))
    # One of two devices on a card sends alone; of stages of two, both do.
    alone, both = (
        point_to_point_seconds(cluster, np.array([28e9]), one(size), one(stride))[0]
        for size, stride in ((16, 1), (8, 2))
    )
    assert (alone, both) == pytest.approx((14 / 25, 28 / 25))
    assert near[0] == pytest.approx(1.0)
    assert far[0] == pytest.approx(28 / 25)


@pytest.mark.parametrize(("size", "links"), [(2, 1), (4, 3), (8, 7)])
def test_a_group_on_a_full_mesh_uses_the_links_between_its_members(size: int, links: int) -> None:
    tiers = (
        LinkTier("mesh", 8, 196e9, 1.0, 0.0, 0.0, one_to_one=True),
        LinkTier("outside", 0, 25e9, 1.0, 0.0, 0.0),
    )
    cluster = small_cluster(tiers=tiers)
    seconds = all_gather_seconds(cluster, np.array([8e9]), one(size), one(1))
    assert seconds[0] == pytest.approx(8e9 * (size - 1) / size / (links * 28e9))


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_nothing_to_send_takes_no_time(size: int) -> None:
    cluster, none = small_cluster(), np.zeros(1)
    assert all_gather_seconds(cluster, none, one(size), one(1))[0] == 0
    assert all_to_all_seconds(cluster, none, one(size), one(1))[0] == 0
    assert all_gather_seconds(cluster, np.array([1e9]), one(1), one(1))[0] == 0


def test_published_copies_for_ep32_on_4_nodes() -> None:
    # design: 6.00 flat, 3.00 all-gather, 2.71 de-duplicated for top-8 of 256.
    copies = cross_node_copies(moe(256, 8), np.array([4, 4, 4]), np.arange(3))
    assert copies == pytest.approx([6.0, 3.0, 2.71], abs=0.01)


@given(
    nodes=st.sampled_from([2, 4, 8]),
    top_k=st.integers(1, 8),
    limited=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_node_needed_equals_sampling(nodes: int, top_k: int, limited: bool, seed: int) -> None:
    layer = moe(64, top_k, groups=8 if limited else 1, top_groups=4 if limited else 1)
    rng = np.random.default_rng(seed)
    hits = 0
    draws = 2000
    for _ in range(draws):
        chosen = rng.permutation(layer.groups)[: layer.top_groups]
        per_group = 64 // layer.groups
        allowed = np.concatenate([np.arange(g * per_group, (g + 1) * per_group) for g in chosen])
        experts = rng.permutation(allowed)[:top_k]
        hits += bool((experts < 64 // nodes).any())
    expected = node_needed(layer, nodes)
    assert hits / draws == pytest.approx(expected, abs=5 * np.sqrt(0.25 / draws))


@given(top_k=st.integers(1, 16), nodes=st.sampled_from([1, 2, 4, 8, 16]))
def test_dedup_never_sends_more_than_either_other(top_k: int, nodes: int) -> None:
    flat, gather, dedup = cross_node_copies(moe(256, top_k), np.full(3, nodes), np.arange(3))
    assert dedup <= min(flat, gather) + 1e-9
    assert (gather < flat) == (top_k > nodes) or nodes == 1


def test_one_rank_dispatches_in_no_time() -> None:
    model = small_model()
    strategy = Strategy(tp=1, pp=1, vpp=1, ep=1, etp=1, cp=1, dp=8, mbs=1)
    layer = model.moe
    assert layer
    out = dispatch_seconds(
        small_cluster(), layer, 512, batch_of([strategy]), np.array([1024.0]), 1.0
    )
    assert out.total[0] == 0


def test_hierarchical_dispatch_across_nodes_beats_flat() -> None:
    layer = moe(256, 8)
    strategies = [
        Strategy(tp=1, pp=1, vpp=1, ep=32, etp=1, cp=1, dp=32, mbs=1, dispatcher=x)
        for x in DISPATCHERS
    ]
    out = dispatch_seconds(
        small_cluster(), layer, 4096, batch_of(strategies), np.full(3, 1024.0), 1.0
    )
    flat, gather, dedup = out.total
    row = 1024 * 4096 * 2
    assert flat == pytest.approx(row * 6 / 25e9)
    assert gather == pytest.approx(row * 3 / 25e9 + row * 7 / 200e9)
    assert dedup < gather < flat


def test_each_dispatcher_waits_for_its_own_heaviest_receiver() -> None:
    layer = moe(256, 8)
    strategies = [
        Strategy(tp=1, pp=1, vpp=1, ep=32, etp=1, cp=1, dp=32, mbs=1, dispatcher=x)
        for x in DISPATCHERS
    ]
    args = (small_cluster(), layer, 4096, batch_of(strategies), np.full(3, 1024.0))
    even, skewed = dispatch_seconds(*args, 1.0), dispatch_seconds(*args, 2.0)
    flat, gather, dedup = skewed.inter / even.inter
    assert flat == pytest.approx(rank_imbalance(layer, one(32), 2.0)[0])
    assert gather == pytest.approx(1.0)  # static shapes: every token goes to every node
    assert dedup == pytest.approx(rank_imbalance(layer, one(4), 2.0)[0])
    assert 1 < dedup < flat
    assert skewed.intra[1] / even.intra[1] == pytest.approx(flat)


@given(ep=st.sampled_from([1, 2, 8, 32, 256]), imbalance=st.floats(1.0, 8.0))
def test_rank_imbalance_lies_between_even_and_the_expert(ep: int, imbalance: float) -> None:
    skew = rank_imbalance(moe(256, 8), one(ep), imbalance)[0]
    assert 1 <= skew <= imbalance + 1e-9
    if ep == 256:
        assert skew == pytest.approx(imbalance)


def test_rank_imbalance_equals_sampling() -> None:
    rng = np.random.default_rng(0)
    loads = np.maximum(rng.normal(1.0, 0.2, size=(4000, 256)), 0)
    expert = (loads.max(1) / loads.mean(1)).mean()
    ranks = loads.reshape(4000, 32, 8).mean(2)
    measured = (ranks.max(1) / ranks.mean(1)).mean()
    assert rank_imbalance(moe(256, 8), one(32), expert)[0] == pytest.approx(measured, rel=0.02)
