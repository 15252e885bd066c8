"""Compute and memory costs against hand-made sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import small_cluster, small_model
from hypothesis import given
from hypothesis import strategies as st

from unjam.cost.attention import layer_flops_per_token, mean_keys, train_flops_per_token
from unjam.cost.batch import Batch, batch_of
from unjam.cost.compute import grouped_matmul_seconds, matmul_seconds, vector_seconds
from unjam.cost.layer import SUB_OPERATIONS, LayerContext, layer_seconds
from unjam.cost.memory import head_bytes, layer_bytes, layer_parameters, static_bytes
from unjam.spec.clusters import load_cluster
from unjam.spec.models import load_model
from unjam.spec.strategy import RECOMPUTE, JobSpec, Strategy

JOB = JobSpec(devices=64, seq_len=1024, global_batch=64)
DEGREES = {"tp": 2, "pp": 2, "vpp": 1, "ep": 8, "etp": 1, "cp": 1, "dp": 16, "mbs": 1}


def context(job: JobSpec = JOB, **changes: object) -> LayerContext:
    strategy = Strategy(**(DEGREES | changes))  # type: ignore[arg-type]
    return LayerContext(small_model(), small_cluster(), job, batch_of([strategy]))


def test_large_matmul_reaches_its_efficiency() -> None:
    device = small_cluster().device
    seconds = matmul_seconds(device, "bf16", 128 * 99, 8192, 8192)
    work = 2 * 128 * 99 * 8192 * 8192 / (1e14 * 0.8 * 0.99)
    assert seconds == pytest.approx(work + device.kernel_seconds)


def test_thin_matmul_is_bound_by_memory() -> None:
    device = small_cluster().device
    seconds = matmul_seconds(device, "bf16", 1, 8192, 8192)
    assert seconds >= 2 * 8192 * 8192 / device.memory_bytes_per_second


def test_grouped_matmul_of_one_group_is_a_matmul_at_its_own_efficiency() -> None:
    device = small_cluster().device
    one = grouped_matmul_seconds(device, "bf16", 1, 4096, 4096, 4096) - device.kernel_seconds
    plain = matmul_seconds(device, "bf16", 4096, 4096, 4096) - device.kernel_seconds
    assert one * 0.6 == pytest.approx(plain * 0.8)


@given(rows=st.integers(0, 10**6))
def test_no_rows_cost_one_empty_kernel(rows: int) -> None:
    device = small_cluster().device
    assert grouped_matmul_seconds(device, "bf16", 0, rows, 64, 64) == device.kernel_seconds
    assert vector_seconds(device, 0) == device.kernel_seconds


@given(seq=st.integers(1, 300), limit=st.integers(1, 400))
def test_mean_keys_equals_counting(seq: int, limit: int) -> None:
    counted = np.mean([min(i + 1, limit) for i in range(seq)])
    assert mean_keys(seq, limit) == pytest.approx(counted)
    assert mean_keys(seq, None) == pytest.approx(np.mean(np.arange(seq) + 1))


def test_pangu_flops_equal_the_published_figures() -> None:
    model, _ = load_model("pangu-ultra-moe-718b")
    dense, sparse = (layer_flops_per_token(x, 8192) for x in (model.layers[0], model.layers[-1]))
    assert dense / 1e9 == pytest.approx(1.578, abs=5e-4)
    assert sparse / 1e9 == pytest.approx(1.582, abs=5e-4)
    assert train_flops_per_token(model, 8192) / 1e9 == pytest.approx(309.1, abs=0.05)


def test_a_batch_costs_what_its_strategies_cost_alone() -> None:
    strategies = [
        Strategy(**(DEGREES | {"recompute": r, "dispatcher": d, "tp": tp, "dp": 32 // tp}))  # type: ignore[arg-type]
        for r in RECOMPUTE
        for d in ("flat", "allgather", "dedup")
        for tp in (1, 2)
    ]
    model, cluster = small_model(), small_cluster()
    together = LayerContext(model, cluster, JOB, batch_of(strategies))
    matrix = layer_seconds(together, model.layers[-1]).matrix
    kept = layer_bytes(together, model.layers[-1]).kept
    for i, strategy in enumerate(strategies):
        alone = LayerContext(model, cluster, JOB, batch_of([strategy]))
        assert layer_seconds(alone, model.layers[-1]).matrix[:, 0] == pytest.approx(matrix[:, i])
        assert layer_bytes(alone, model.layers[-1]).kept[0] == pytest.approx(kept[i])


def test_dense_layer_has_no_dispatch() -> None:
    c = context()
    costs = layer_seconds(c, c.model.layers[0])
    assert all(costs[x][0] == 0 for x in ("D_f", "C_f", "D_b", "C_b"))
    assert all(costs[x][0] > 0 for x in ("A_f", "A_b", "A_w", "E_f", "E_b", "E_w"))


def test_imbalance_slows_experts_and_dispatch_alone() -> None:
    even, skewed = context(), context(JobSpec(**(_fields(JOB) | {"imbalance": 2.0})))
    a = layer_seconds(even, even.model.layers[-1])
    b = layer_seconds(skewed, skewed.model.layers[-1])
    assert b["E_f"][0] > a["E_f"][0]
    assert b["D_f"][0] > a["D_f"][0]
    assert b["A_f"][0] == a["A_f"][0]


def _fields(job: JobSpec) -> dict[str, object]:
    return {x: getattr(job, x) for x in ("devices", "seq_len", "global_batch", "dtype")}


def test_full_recomputation_runs_the_forward_again() -> None:
    c = context(recompute="full")
    costs = layer_seconds(c, c.model.layers[-1])
    assert costs["recompute_A"][0] == costs["A_f"][0]
    assert costs["recompute_E"][0] == costs["E_f"][0]
    assert costs["recompute_ep"][0] == costs["D_f"][0] + costs["C_f"][0]
    row = 1024 / 2 * 512 * 2
    assert layer_bytes(c, c.model.layers[-1]).kept[0] == row


@pytest.mark.parametrize("recompute", list(RECOMPUTE)[1:])
def test_recomputation_trades_bytes_for_seconds(recompute: str) -> None:
    none, some = context(), context(recompute=recompute)
    layer = none.model.layers[-1]
    again = [SUB_OPERATIONS.index(x) for x in SUB_OPERATIONS if x.startswith("recompute")]
    assert layer_bytes(some, layer).kept[0] < layer_bytes(none, layer).kept[0]
    assert layer_seconds(some, layer).matrix[again].sum() > 0
    assert layer_seconds(none, layer).matrix[again].sum() == 0


# TFLOP/s of FP8 grouped GEMMs on H800 by rows per group: DeepGEMM README of 2025 (MIT licence),
# contiguous and masked layouts, for weights [7168, 4096] and [2048, 7168].
DEEPGEMM = {
    (7168, 4096): {256: 932, 512: 1040, 1024: 1233, 4096: 1288, 8192: 1297},
    (2048, 7168): {256: 815, 512: 916, 1024: 925, 4096: 1093, 8192: 1099},
}


@pytest.mark.parametrize(("shape", "measured"), DEEPGEMM.items())
def test_ramp_over_rows_follows_published_grouped_matmuls(
    shape: tuple[int, int], measured: dict[int, float]
) -> None:
    device = replace(load_cluster("h800").device, kernel_seconds=0.0)
    rows = np.array(list(measured), dtype=np.float64)
    seconds = grouped_matmul_seconds(device, "fp8", 8, rows, *shape)
    ratio = (
        8 * 2 * rows * shape[0] * shape[1] / seconds / (np.array(list(measured.values())) * 1e12)
    )
    # The level is the preset's efficiency; the ramp is what is tested.
    assert ratio / ratio.mean() == pytest.approx(1.0, abs=0.08)


def test_dense_layer_bytes_equal_a_hand_made_sum() -> None:
    # Per token, TP 2, sequence parallel: inputs and outputs of two norms (4 x 512), queries 512,
    # keys and values 2 x 256, attention's output 512, gate, up and their product 3 x 2048, all
    # bf16; softmax statistics of 8 heads in fp32.
    per_token = 2 * (4 * 512 + 512 + 2 * 256 + 512 + 3 * 2048) + 4 * 8
    c = context()
    assert layer_bytes(c, c.model.layers[0]).kept[0] == c.tokens[0] / 2 * per_token


def test_up_projections_that_are_recomputed_are_not_kept() -> None:
    model = load_model("deepseek-v3")[0]
    kept = []
    for recompute in ("act", "act+mla"):
        batch = batch_of([Strategy(**(DEGREES | {"recompute": recompute}))])  # type: ignore[arg-type]
        c = LayerContext(model, small_cluster(), JOB, batch)
        kept.append(layer_bytes(c, model.layers[-1]).kept[0])
    # Queries and keys 192 wide and values 128 wide of 128 heads, bf16, cut by TP 2.
    assert kept[0] - kept[1] == c.tokens[0] / 2 * 128 * (192 + 192 + 128) * 2


def test_softmax_of_the_logits_is_kept_until_backward() -> None:
    c = context()
    head = head_bytes(c)
    logits = c.tokens[0] * 32000 / 2
    assert head.kept[0] == 4 * logits + c.tokens[0] / 2 * 512 * 2
    assert head.working[0] == 4 * logits


@pytest.mark.parametrize(("tp", "shards"), [(1, 1), (4, 4), (8, 4)])
def test_key_and_value_heads_are_repeated_beyond_their_number(tp: int, shards: int) -> None:
    model = load_model("qwen3-30b-a3b")[0]
    batch = batch_of([Strategy(**(DEGREES | {"tp": tp}))])  # type: ignore[arg-type]
    attention = model.layers[0].attention
    assert attention
    linears = {x.name: x.params for x in attention.linears}
    cut = (linears["q"] + linears["out"]) / tp + (linears["k"] + linears["v"]) / shards
    moe = model.moe
    assert moe
    others = model.layers[0].norm_params + attention.other_params + moe.router.params
    assert layer_parameters(model.layers[0], batch).dense[0] == cut + others


def test_parameter_buckets_sum_to_the_layer() -> None:
    model = small_model()
    whole: Batch = batch_of([Strategy(**(DEGREES | {"tp": 1, "dp": 32, "ep": 1}))])  # type: ignore[arg-type]
    for layer in model.layers:
        buckets = layer_parameters(layer, whole)
        assert buckets.dense[0] + buckets.routed[0] == layer.params


def test_routed_experts_are_cut_by_ep_and_etp() -> None:
    c = context(etp=2, ep=8)
    layer = c.model.layers[-1]
    assert layer_parameters(layer, c.batch).routed[0] == layer.routed_params / 16


@pytest.mark.parametrize(
    ("zero", "per_parameter"), [(0, 18), (1, 6 + 12 / 16), (2, 2 + 16 / 16), (3, 18 / 16)]
)
def test_zero_stages_shard_dense_states(zero: int, per_parameter: float) -> None:
    c = context(zero=zero)
    params = layer_parameters(c.model.layers[0], c.batch)
    fixed = static_bytes(params, c.batch, "bf16")
    total = fixed.weights + fixed.gradients + fixed.optimizer
    assert total[0] == pytest.approx(per_parameter * params.dense[0])
