"""One simulated step: its parts add up and it answers to its inputs as it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import small_cluster, small_model

from unjam.search.layout import strategy_layout
from unjam.spec.cluster import LinkTier
from unjam.spec.strategy import JobSpec, Strategy
from unjam.twin.result import StepResult
from unjam.twin.step import simulate_step

JOB = JobSpec(devices=64, seq_len=4096, global_batch=128)
BASE = Strategy(
    tp=2, pp=4, vpp=2, ep=8, etp=1, cp=1, dp=8, mbs=1, schedule="adaptive", dispatcher="flat"
)
MODEL = small_model(layers=8, mtp=1)


def run(job: JobSpec = JOB, **changes: object) -> StepResult:
    strategy = replace(BASE, **changes)  # type: ignore[arg-type]
    if not strategy.layout:
        strategy = replace(strategy, layout=strategy_layout(MODEL, small_cluster(), job, strategy))
    return simulate_step(MODEL, small_cluster(), job, strategy)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "adaptive"])
def test_parts_of_the_step_sum_to_the_step(schedule: str) -> None:
    vpp = 1 if schedule == "1f1b" else 2
    p = run(schedule=schedule, vpp=vpp).prediction
    assert sum(p.time_seconds.values()) == pytest.approx(p.step_seconds)
    assert all(x >= -1e-9 for x in p.time_seconds.values()), p.time_seconds
    assert sum(p.memory_gib.values()) == pytest.approx(p.peak_memory_gib)


def test_tokens_per_second_follow_from_the_step() -> None:
    p = run().prediction
    assert p.tokens_per_second_per_device == pytest.approx(128 * 4096 / p.step_seconds / 64)
    assert 0 < p.mfu < 1
    assert 0 <= p.bubble_fraction < 1
    assert 0 <= p.exposed_comm_fraction < 1
    assert 0 <= p.hidden_ep_fraction <= 1


def test_overlap_hides_what_interleaved_exposes() -> None:
    # EP16 crosses nodes, so there is something to hide.
    plain, hidden = run(schedule="interleaved", ep=16), run(schedule="adaptive", ep=16)
    assert hidden.prediction.step_seconds < plain.prediction.step_seconds
    assert hidden.prediction.hidden_ep_fraction > plain.prediction.hidden_ep_fraction


def test_twice_the_batch_takes_less_than_twice_the_time() -> None:
    once, twice = run(), run(replace(JOB, global_batch=256))
    ratio = twice.prediction.step_seconds / once.prediction.step_seconds
    assert 1.5 < ratio < 2.0
    assert twice.prediction.bubble_fraction < once.prediction.bubble_fraction


def test_imbalance_slows_the_step() -> None:
    skewed = run(replace(JOB, imbalance=3.0))
    assert skewed.prediction.step_seconds > run().prediction.step_seconds


def test_recomputation_saves_memory_and_costs_time() -> None:
    none, full = (run(schedule="interleaved", recompute=x).prediction for x in ("none", "full"))
    assert full.peak_memory_gib < none.peak_memory_gib
    assert full.step_seconds > none.step_seconds


def test_one_device_runs_without_communication() -> None:
    job = JobSpec(devices=1, seq_len=512, global_batch=4)
    alone = {"tp": 1, "pp": 1, "vpp": 1, "ep": 1, "dp": 1, "schedule": "1f1b"}
    p = run(job, **alone).prediction
    assert p.exposed_comm_fraction == 0
    assert p.hidden_ep_fraction == 1
    assert p.time_seconds["pipeline bubble"] == pytest.approx(0, abs=1e-12)


def test_zero_3_shards_memory() -> None:
    flat = {"pp": 1, "vpp": 1, "dp": 32, "schedule": "1f1b"}
    one, three = (run(zero=x, **flat).prediction for x in (1, 3))
    assert three.memory_gib["gradients"] < one.memory_gib["gradients"]


def test_zero_3_pays_on_a_slow_network() -> None:
    slow = small_cluster(
        tiers=(LinkTier("inside", 8, 1e9, 1.0, 0, 0), LinkTier("outside", 0, 1e8, 1.0, 0, 0))
    )
    flat = replace(BASE, pp=1, vpp=1, dp=32, schedule="1f1b")
    strategies = (
        replace(flat, zero=x, layout=strategy_layout(MODEL, small_cluster(), JOB, flat))
        for x in (1, 3)
    )
    one, three = (simulate_step(MODEL, slow, JOB, x).prediction for x in strategies)
    assert three.step_seconds > one.step_seconds
