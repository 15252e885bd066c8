"""The search against brute force over whole small spaces."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_cluster, small_model

from unjam.cost.batch import Batch
from unjam.search.planner import bound_candidates, plan_job
from unjam.search.published import fitting_result
from unjam.search.rules import rules
from unjam.search.space import Fixed, enumerate_space
from unjam.spec.cluster import ClusterSpec
from unjam.spec.clusters import load_cluster
from unjam.spec.errors import InputError
from unjam.spec.layout import format_layout
from unjam.spec.models import load_model
from unjam.spec.strategy import JobSpec
from unjam.twin.step import simulate_step

JOB = JobSpec(devices=16, seq_len=1024, global_batch=32)
FIXED = {"cp": 1, "mbs": 1, "etp": 1}


def all_results(cluster: ClusterSpec, batch: Batch) -> list[tuple[float, float, float, float]]:
    """Simulated and bounded seconds and GiB of every valid strategy."""
    model = small_model(layers=6)
    candidates = bound_candidates(model, cluster, JOB, batch)
    out = []
    for i in range(len(batch)):
        layout = format_layout(candidates.layouts[candidates.layout[i]])
        p = simulate_step(model, cluster, JOB, batch.strategy(i, layout)).prediction
        bound = (candidates.seconds[i], candidates.bytes[i] / 2**30)
        out.append((p.step_seconds, p.peak_memory_gib, *bound))
    return out


@pytest.fixture(scope="module")
def brute() -> list[tuple[float, float, float, float]]:
    model, cluster = small_model(layers=6), small_cluster()
    space = enumerate_space(model, cluster, JOB, rules(model, cluster, JOB), FIXED)
    assert len(space.valid) > 200
    return all_results(cluster, space.valid)


def test_bounds_never_exceed_the_simulation(
    brute: list[tuple[float, float, float, float]],
) -> None:
    for seconds, gib, bound_seconds, bound_gib in brute:
        assert bound_seconds <= seconds * (1 + 1e-9)
        assert bound_gib <= gib * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "where", "fixed"),
    [
        ("deepseek-v3", "h100", {}),  # MTP
        ("deepseek-v3", "atlas-800t-a2", {"schedule": "adaptive"}),  # a full mesh
        ("hunyuan-a13b", "h100", {"recompute": "none"}),  # tied embeddings
        ("nemotron-3-nano-30b-a3b", "h100", {}),  # Mamba, layers without FFN
        ("gpt-oss-120b", "h100", {"etp": 2}),  # sliding windows
        ("qwen3.5-397b-a17b", "h100", {"recompute": "full"}),  # linear attention
        ("qwen3-30b-a3b", "atlas-800t-a2", {"cp": 2}),
        ("qwen3-30b-a3b", "h100", {"zero": 0}),
        ("qwen3-30b-a3b", "h100", {"zero": 2, "pp": 1}),
    ],
)
def test_bounds_hold_for_a_sample_of_every_kind(name: str, where: str, fixed: Fixed) -> None:
    model, cluster = load_model(name)[0], load_cluster(where)
    job = JobSpec(devices=64, seq_len=4096, global_batch=128)
    valid = enumerate_space(model, cluster, job, rules(model, cluster, job), fixed).valid
    rows = np.random.default_rng(0).choice(len(valid), min(60, len(valid)), replace=False)
    sample = valid.take(rows)
    candidates = bound_candidates(model, cluster, job, sample)
    for i in range(len(sample)):
        layout = format_layout(candidates.layouts[candidates.layout[i]])
        p = simulate_step(model, cluster, job, sample.strategy(i, layout)).prediction
        assert candidates.seconds[i] <= p.step_seconds * (1 + 1e-9)
        assert candidates.bytes[i] <= p.peak_memory_gib * 2**30 * (1 + 1e-9)


def test_winner_equals_brute_force(brute: list[tuple[float, float, float, float]]) -> None:
    result = plan_job(small_model(layers=6), small_cluster(), JOB, top=3, fixed=FIXED)
    best = min(seconds for seconds, gib, *_ in brute if gib <= result.best[0].limit_gib)
    assert result.best[0].prediction.step_seconds == pytest.approx(best)


def test_counts_add_up() -> None:
    counts = plan_job(small_model(), small_cluster(), JOB, fixed=FIXED).counts
    assert counts["raw"] == counts["invalid"] + counts["pruned"] + counts["simulated"]
    assert counts["simulated"] > 0


def test_same_inputs_give_the_same_ranking() -> None:
    first, second = (plan_job(small_model(), small_cluster(), JOB, fixed=FIXED) for _ in range(2))
    assert [x.strategy for x in first.best] == [x.strategy for x in second.best]


def test_best_is_sorted_and_fits() -> None:
    best = plan_job(small_model(), small_cluster(), JOB, top=5).best
    times = [x.prediction.step_seconds for x in best]
    assert times == sorted(times)
    assert all(x.prediction.peak_memory_gib <= x.limit_gib for x in best)
    shapes = {str(x.strategy) for x in best}
    assert len(shapes) == len(best)


def test_fixed_values_are_kept() -> None:
    result = plan_job(small_model(), small_cluster(), JOB, fixed={"tp": 2, "ep": 4, "dp": 8})
    assert {(x.strategy.tp, x.strategy.ep, x.strategy.dp) for x in result.best} == {(2, 4, 8)}


def test_one_device_gets_a_plan() -> None:
    job = JobSpec(devices=1, seq_len=128, global_batch=1)
    assert plan_job(small_model(), small_cluster(), job).best[0].strategy.devices == 1


def test_dense_model_gets_a_plan_without_ep() -> None:
    result = plan_job(small_model(layers=4, dense=4), small_cluster(), JOB)
    assert {x.strategy.ep for x in result.best} == {1}


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"tp": 3}, "TP 3 x PP 1 x CP 1 x DP 1 is not 16 devices"),
        ({"dp": 3}, "no degrees give DP 3"),
        ({"etp": 2, "schedule": "adaptive"}, "adaptive needs ETP 1, not 2"),
        ({"colour": 1}, "colour"),
        ({"schedule": "zigzag"}, "zigzag"),
    ],
)
def test_impossible_wishes_are_one_clear_line(fixed: dict[str, int | str], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        plan_job(small_model(), small_cluster(), JOB, fixed=fixed)
    assert "\n" not in str(caught.value)


def test_an_endless_step_is_one_clear_line() -> None:
    job = JobSpec(devices=16, seq_len=1024, global_batch=10**12)
    with pytest.raises(InputError, match="over 131072 passes"):
        plan_job(small_model(), small_cluster(), job)


def test_too_small_a_cluster_says_how_many_devices_would_do() -> None:
    job = JobSpec(devices=1, seq_len=4096, global_batch=8)
    with pytest.raises(InputError, match=r"about \d+ devices would fit"):
        plan_job(small_model(layers=80, experts=1024), small_cluster(), job)


def test_a_published_strategy_takes_the_leanest_recomputation_that_fits() -> None:
    best = plan_job(small_model(), small_cluster(), JOB, fixed=FIXED).best[0].strategy
    result, note = fitting_result(small_model(), small_cluster(), JOB, best, "note")
    assert result is not None
    assert "recompute" in note
