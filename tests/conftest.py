"""Small models and clusters that the tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

from unjam.spec.cluster import ClusterSpec, Device, LinkTier
from unjam.spec.model import Attention, DenseFFN, Layer, Linear, ModelSpec, MoE, MTPLayer

GIB = 2.0**30

# Compiling and a busy machine make single examples slow; slowness is a benchmark's business.
settings.register_profile("unjam", deadline=None)
settings.load_profile("unjam")


def small_cluster(**changes: object) -> ClusterSpec:
    """Nodes of 8 devices with round numbers."""
    device = Device(
        name="round",
        peak_flops={"bf16": 1e14, "fp8": 2e14},
        memory_bytes=64 * GIB,
        memory_bytes_per_second=1e12,
        reserved_bytes=2 * GIB,
        matmul_efficiency={"bf16": 0.8},
        grouped_matmul_efficiency={"bf16": 0.6},
        attention_efficiency=0.5,
        attention_backward_efficiency=0.4,
        vector_efficiency=0.8,
        tile=16,
        half_rows=128,
        kernel_seconds=5e-6,
    )
    tiers = (
        LinkTier("inside", 8, 200e9, 1.0, 0.0, 0.0),
        LinkTier("outside", 0, 25e9, 1.0, 0.0, 0.0),
    )
    fields: dict[str, object] = {
        "name": "small",
        "device": device,
        "devices_per_node": 8,
        "max_devices": 4096,
        "tiers": tiers,
    }
    return ClusterSpec(**(fields | changes))  # type: ignore[arg-type]


def small_model(layers: int = 4, dense: int = 1, experts: int = 16, mtp: int = 0) -> ModelSpec:
    """A MoE of `layers` layers, the first `dense` of them dense."""
    width = 512
    attention = Attention(
        kind="gqa",
        linears=(
            Linear("qkv", width, width * 2, "column"),
            Linear("out", width, width, "row"),
        ),
        heads=8,
        kv_heads=4,
        qk_head_dim=64,
        v_head_dim=64,
    )
    plain = DenseFFN(
        (Linear("gate_up", width, 4096, "column"), Linear("down", 2048, width, "row")), 2048
    )
    moe = MoE(
        experts=experts,
        top_k=4,
        expert=(Linear("gate_up", width, 512, "column"), Linear("down", 256, width, "row")),
        expert_width=256,
        router=Linear("router", width, experts),
        shared=(Linear("gate_up", width, 512, "column"), Linear("down", 256, width, "row")),
        shared_width=256,
    )
    blocks = tuple(
        Layer(attention, plain if i < dense else moe, norms=2, norm_params=2 * width)
        for i in range(layers)
    )
    extra = tuple(
        MTPLayer(blocks[-1], Linear("projection", 2 * width, width), 3 * width) for _ in range(mtp)
    )
    return ModelSpec("small", "small_moe", width, 32000, blocks, extra, False, width)


@pytest.fixture
def cluster() -> ClusterSpec:
    return small_cluster()


@pytest.fixture
def model() -> ModelSpec:
    return small_model()
