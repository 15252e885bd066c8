"""Edited plans: each mistake is one line with file and field, and never a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unjam
from unjam import cli
from unjam.search.open_plan import open_plan
from unjam.search.planner import make_plan
from unjam.spec.errors import InputError
from unjam.spec.models import load_model
from unjam.spec.plan_io import plan_to_yaml
from unjam.twin.step import simulate_step

JOB = {"devices": 16, "seq_len": 4096, "global_batch": 64}


@pytest.fixture(scope="module")
def text() -> str:
    held = {"tp": 1, "pp": 2, "vpp": 5, "ep": 8, "schedule": "adaptive"}
    result = unjam.plan("qwen3-30b-a3b", "h100", **JOB, fixed=held, top=1)
    return plan_to_yaml(make_plan("qwen3-30b-a3b", load_model("qwen3-30b-a3b")[1], result))


def test_a_plan_simulates_to_what_was_predicted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    plan, model, cluster = open_plan(path)
    assert simulate_step(model, cluster, plan.job, plan.strategy).prediction == plan.prediction


def test_export_as_json_holds_arguments_and_environment(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert cli.run(["export", str(path), "--to", "megatron", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arguments"][:2] == ["--num-layers", "48"]
    assert found["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert any("predicted" in x for x in found["remarks"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  tp: 1\n", "  tp: 2\n", "is not 16 devices"),
        ("  dp: 8\n", "  dp: 16\n", "is not 16 devices"),
        ("  pp: 2\n", "  pp: 3\n", "is not 16 devices"),
        ("  vpp: 5\n", "  vpp: 4\n", "stages"),
        ("  ep: 8\n", "  ep: 7\n", "128 routed experts do not divide by EP 7"),
        ("  mbs: 1\n", "  mbs: 3\n", "no multiple of MBS 3"),
        ("  mbs: 1\n", "  mbs: 64\n", "no multiple of MBS 64"),
        ("  zero: 1\n", "  zero: 2\n", "ZeRO-2"),
        ("  schedule: adaptive\n", "  schedule: 1f1b\n", "use interleaved with VPP 5"),
        ("  dispatcher: flat\n", "  dispatcher: dedup\n", "whole nodes"),
        ("  layout: E", "  layout: Et", "the model has 48 layers"),
        ("L\n", "\n", "layout"),
        ("  devices: 16\n", "  devices: 32\n", "is not 32 devices"),
        ("  devices: 16\n", "  devices: 131073\n", "job.devices: 131073: h100 has at most 131072"),
        ("  imbalance: 1.5\n", "  imbalance: 17\n", "at most 16 x the mean"),
        ("num_experts: 128\n", "num_experts: 0\n", "field model_config.num_experts: 0"),
        ("num_hidden_layers: 48\n", "num_hidden_layers: 47\n", "47 layers"),
    ],
)
def test_each_mistake_is_one_line(
    text: str, tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in text
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=r"plan\.yaml:") as caught:
        open_plan(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
