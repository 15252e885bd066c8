"""Plan files: exact round trips, and every mistake on one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from unjam.spec.clusters import cluster_presets, cluster_to_mapping, load_cluster
from unjam.spec.errors import InputError
from unjam.spec.fields import to_plain
from unjam.spec.plan import Plan, Prediction
from unjam.spec.plan_io import load_plan, plan_from_yaml, plan_to_yaml, save_plan
from unjam.spec.strategy import DISPATCHERS, RECOMPUTE, SCHEDULES, JobSpec, Strategy

CLUSTER = cluster_to_mapping(small_cluster(sources={"device.tile": "a: #guess"}))
COUNTS = st.integers(1, 10**9)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TABLES = st.dictionaries(st.text(max_size=9), NUMBERS, max_size=3)
CONFIG_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=9),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=8,
)
STRATEGIES = st.builds(
    Strategy,
    **dict.fromkeys(["tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs"], COUNTS),
    zero=st.integers(0, 3),
    recompute=st.sampled_from([*RECOMPUTE]),
    dispatcher=st.sampled_from(DISPATCHERS),
    schedule=st.sampled_from(SCHEDULES),
    layout=st.text(alphabet="Et|(*3)mL, ", max_size=12),
)
JOBS = st.builds(
    JobSpec,
    devices=COUNTS,
    seq_len=COUNTS,
    global_batch=COUNTS,
    dtype=st.sampled_from(["bf16", "fp8"]),
    imbalance=st.floats(1, 1e6),
)
PREDICTIONS = st.builds(
    Prediction,
    **dict.fromkeys(
        [
            "step_seconds", "tokens_per_second_per_device", "mfu", "peak_memory_gib",
            "exposed_comm_fraction", "hidden_ep_fraction", "bubble_fraction",
        ],
        NUMBERS,
    ),
    peak_memory_rank=st.integers(0, 4096),
    memory_gib=TABLES,
    time_seconds=TABLES,
    calibrated_on=st.text(max_size=12),
)  # fmt: skip
PLANS = st.builds(
    Plan,
    model_name=st.text(max_size=12),
    model_config=st.dictionaries(st.text(max_size=9), CONFIG_VALUES, max_size=4),
    cluster=st.just(CLUSTER),
    job=JOBS,
    strategy=STRATEGIES,
    prediction=PREDICTIONS,
)


def a_plan(**changes: Any) -> Plan:
    prediction = Prediction(
        step_seconds=0.1 + 0.2,
        tokens_per_second_per_device=1e-7,
        mfu=1 / 3,
        peak_memory_gib=60.0,
        peak_memory_rank=0,
        memory_gib={"weights": 1e22},
        exposed_comm_fraction=-0.0,
        hidden_ep_fraction=1.0,
        bubble_fraction=5e-324,
        time_seconds={"experts and FFN": 2.0},
        calibrated_on="nothing: measured",
    )
    strategy = Strategy(tp=8, pp=4, vpp=2, ep=32, etp=1, cp=1, dp=32, mbs=1, layout="Et*3|t|mL")
    plan = Plan(
        model_name="m",
        model_config={"hidden_size": 512, "eps": 1e-06, "types": ["a", "b"], "x": "1e5"},
        cluster=CLUSTER,
        job=JobSpec(devices=1024, seq_len=4096, global_batch=1024),
        strategy=strategy,
        prediction=prediction,
    )
    return replace(plan, **changes)


GOOD = plan_to_yaml(a_plan())


@settings(max_examples=60)
@given(PLANS)
def test_round_trip_is_exact(plan: Plan) -> None:
    again = plan_from_yaml(plan_to_yaml(plan), "plan.yaml")
    assert again == plan
    assert repr(to_plain(again)) == repr(to_plain(plan))  # equal types and signs of zero too


@settings(max_examples=20)
@given(PLANS)
def test_a_plan_as_json_reads_alike(plan: Plan) -> None:
    assert plan_from_yaml(json.dumps(to_plain(plan)), "plan.json") == plan


@pytest.mark.parametrize("name", cluster_presets())
def test_every_preset_survives_a_plan(name: str) -> None:
    plan = a_plan(cluster=cluster_to_mapping(load_cluster(name)))
    assert plan_from_yaml(plan_to_yaml(plan), "p") == plan


def test_numpy_scalars_and_tuples_become_plain() -> None:
    config = {"a": (np.int64(3), np.float64(0.1), np.bool_(True)), "b": np.float32(0.5)}
    text = plan_to_yaml(a_plan(model_config=config))
    read = plan_from_yaml(text, "p").model_config
    assert read == {"a": [3, 0.1, True], "b": 0.5}
    assert [type(x) for x in read["a"]] == [int, float, bool]


def test_a_shared_object_is_written_twice() -> None:
    shared = {"k": [1, {"z": 2}]}
    plan = a_plan(model_config={"a": shared, "b": shared})
    assert plan_from_yaml(plan_to_yaml(plan), "p") == plan


def test_the_file_opens_with_what_it_is_and_the_strategy() -> None:
    lines = [x for x in GOOD.split("\n") if x]
    assert lines[0] == "# unjam plan: how m trains on 1024 devices of small."
    assert lines[3:5] == ["version: 1", "strategy:"]
    assert "  layout: Et*3|t|mL" in lines
    assert "  types: [a, b]" in lines
    assert all(len(x) <= 100 for x in lines)
    assert yaml.safe_load(GOOD)["strategy"]["ep"] == 32


def test_a_name_cannot_break_out_of_the_header() -> None:
    plan = a_plan(model_name="x\nversion: 3\u2028#\x85version: 4")
    assert plan_from_yaml(plan_to_yaml(plan), "p") == plan


def test_save_and_load(tmp_path: Path) -> None:
    save_plan(tmp_path / "plan.yaml", a_plan())
    assert load_plan(tmp_path / "plan.yaml") == a_plan()
    with pytest.raises(InputError, match="cannot be read"):
        load_plan(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be written"):
        save_plan(tmp_path / "none" / "plan.yaml", a_plan())


def test_defaults_may_be_left_out_by_hand() -> None:
    text = GOOD.replace("  zero: 1\n", "").replace("  imbalance: 1.5\n", "")
    assert plan_from_yaml(text, "p") == a_plan()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "version: 1",
            "version: 2",
            "p.yaml:5: field version: 2 is unknown, this unjam reads 1: make",
        ),
        ("version: 1", "version: true", "field version: True is unknown"),
        ("version: 1", "version: '1'", "field version: '1' is unknown"),
        ("version: 1\n", "", "p.yaml: field version: missing: add 'version: 1'"),
        ("  tp: 8", "  tp: 0", "p.yaml:8: field strategy.tp: must be from 1 to 1000000000, not 0"),
        ("  tp: 8", "  tp: 1" + "0" * 30, "field strategy.tp: must be from 1"),
        ("  tp: 8", "  tp: 8.0", "p.yaml:8: field strategy.tp: must be a whole number, not 8.0"),
        ("  tp: 8", "  tp: eight", "field strategy.tp: must be a whole number, not 'eight'"),
        ("  tp: 8\n", "", "p.yaml:7: field strategy.tp: missing: add it"),
        ("  tp: 8", "  tpp: 8", "p.yaml:8: field strategy.tpp: unknown; did you mean tp?"),
        ("  tp: 8", "  tp: 8\n  tp: 8", "p.yaml:9: field strategy.tp: given twice"),
        ("  zero: 1", "  zero: 4", "field strategy.zero: must be 0, 1, 2 or 3, not 4"),
        (
            "  recompute: none",
            "  recompute: ful",
            "strategy.recompute: 'ful' is unknown; did you mean full?",
        ),
        (
            "dispatcher: flat",
            "dispatcher: dedupe",
            "strategy.dispatcher: 'dedupe' is unknown; did you mean dedup",
        ),
        (
            "schedule: interleaved",
            "schedule: 3",
            "strategy.schedule: 3 is unknown; use 1f1b, interleaved",
        ),
        ("  layout: Et", "  layout: 3 #", "field strategy.layout: must be text, not 3"),
        ("dtype: bf16", "dtype: fp32", "field job.dtype: 'fp32' is unknown; "),
        ("imbalance: 1.5", "imbalance: 0.5", "field job.imbalance: must be from 1"),
        (
            "imbalance: 1.5",
            "imbalance: .nan",
            "field job.imbalance: must be a finite number, not nan",
        ),
        ("  mfu: 0.", "  mfu: x0.", "field prediction.mfu: must be a number"),
        (
            "peak_memory_rank: 0",
            "peak_memory_rank: -1",
            "field prediction.peak_memory_rank: must not be",
        ),
        (
            "    weights: 1.0e+22",
            "    weights: .inf",
            "field prediction.memory_gib.weights: must be a finite",
        ),
        ("model_name: m", "model_name: [m]", "field model_name: must be text, not ['m']"),
        ("model_name: m", "model: m", "field model: unknown; did you mean model_name?"),
        ("    tile: 16", "    tile: -1", "field cluster.device.tile: must be positive, not -1"),
        ("    tile: 16", "    tilt: 16", "field cluster.device.tilt: unknown; did you mean tile?"),
        ("    tile: 16\n", "", "field cluster.device.tile: missing: add it"),
    ],
)
def test_a_bad_field_is_one_line_with_file_line_and_field(old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as error:
        plan_from_yaml(GOOD.replace(old, new, 1), "p.yaml")
    message = str(error.value)
    assert words in message
    assert "\n" not in message
    if "missing: add 'version" not in words:
        assert message.startswith("p.yaml:")


@pytest.mark.parametrize(
    "text", ["", "a: 1", "[]", "{}", "\x00", "strategy: 1\nversion: 1", "version: 1\njob: []"]
)
def test_what_is_no_plan_is_one_line(text: str) -> None:
    with pytest.raises(InputError) as error:
        plan_from_yaml(text, "p.yaml")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("p.yaml:")
