"""Launch arguments: they say what the plan says, and keep Megatron's exclusions."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace

import pytest
from conftest import small_cluster

from unjam.export.megatron import (
    megatron_arguments,
    megatron_environment,
    megatron_remarks,
    to_megatron,
)
from unjam.search.layout import strategy_layout
from unjam.spec.clusters import cluster_to_mapping, load_cluster
from unjam.spec.layout import parse_layout
from unjam.spec.model import ModelSpec
from unjam.spec.models import load_model
from unjam.spec.plan import Plan
from unjam.spec.strategy import RECOMPUTE, JobSpec, Strategy
from unjam.twin.step import simulate_step

JOB = JobSpec(devices=2048, seq_len=4096, global_batch=2048)
BASE = Strategy(
    tp=2, pp=8, vpp=4, ep=64, etp=1, cp=1, dp=128, mbs=1, schedule="adaptive",
    dispatcher="dedup", recompute="act+mla",
)  # fmt: skip


def plan_of(
    name: str = "deepseek-v3", cluster: str = "h800", **changes: object
) -> tuple[Plan, ModelSpec]:
    model, config = load_model(name)
    strategy = replace(BASE, **changes)  # type: ignore[arg-type]
    strategy = replace(strategy, layout=strategy_layout(model, small_cluster(), JOB, strategy))
    spec = load_cluster(cluster)
    prediction = simulate_step(model, small_cluster(), JOB, strategy).prediction
    plan = Plan(
        model_name=name, model_config=config, cluster=cluster_to_mapping(spec), job=JOB,
        strategy=strategy, prediction=prediction,
    )  # fmt: skip
    return plan, model


def flags(arguments: list[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    name = ""
    for x in arguments:
        if x.startswith("--"):
            name = x[2:]
            assert name not in out, f"--{name} given twice"
            out[name] = []
        else:
            out[name].append(x)
    return out


def test_deepseek_v3_shape_and_degrees() -> None:
    found = flags(megatron_arguments(*plan_of()))
    expected = {
        "num-layers": "61", "hidden-size": "7168", "ffn-hidden-size": "18432",
        "num-attention-heads": "128", "q-lora-rank": "1536", "kv-lora-rank": "512",
        "qk-head-dim": "128", "qk-pos-emb-head-dim": "64", "v-head-dim": "128",
        "num-experts": "256", "moe-router-topk": "8", "moe-ffn-hidden-size": "2048",
        "moe-shared-expert-intermediate-size": "2048", "mtp-num-layers": "1",
        "moe-layer-freq": "([0]*3+[1]*58)", "moe-router-num-groups": "8",
        "moe-router-group-topk": "4", "moe-router-score-function": "sigmoid",
        "moe-router-topk-scaling-factor": "2.5", "tensor-model-parallel-size": "2",
        "pipeline-model-parallel-size": "8", "expert-model-parallel-size": "64",
        "expert-tensor-parallel-size": "1", "global-batch-size": "2048",
    }  # fmt: skip
    assert {k: found[k] for k in expected} == {k: [v] for k, v in expected.items()}
    assert found["recompute-modules"] == ["layernorm", "moe_act", "mla_up_proj"]
    assert len(parse_layout(found["pipeline-model-parallel-layout"][0])) == 32
    assert {"sequence-parallel", "moe-router-enable-expert-bias"} <= set(found)
    assert "moe-router-pre-softmax" not in found
    assert "untie-embeddings-and-output-weights" in found


def test_chunks_are_said_once() -> None:
    found = flags(megatron_arguments(*plan_of()))
    spellings = {
        "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage",
        "pipeline-model-parallel-layout",
    }  # fmt: skip
    assert len(spellings & set(found)) == 1


@pytest.mark.parametrize("recompute", list(RECOMPUTE))
def test_recomputation_uses_megatrons_names(recompute: str) -> None:
    found = flags(megatron_arguments(*plan_of(recompute=recompute, schedule="interleaved")))
    if recompute == "none":
        assert "recompute-granularity" not in found
    elif recompute == "full":
        assert found["recompute-granularity"] == ["full"]
        assert "recompute-modules" not in found
    else:
        assert set(found["recompute-modules"]) == RECOMPUTE[recompute]
    assert "overlap-moe-expert-parallel-comm" not in found


@pytest.mark.parametrize("recompute", ["act", "act+mla+mlp", "moe"])
def test_only_modules_that_the_model_has_are_recomputed(recompute: str) -> None:
    plan, model = plan_of("qwen3-30b-a3b", recompute=recompute, schedule="interleaved")
    found = flags(megatron_arguments(plan, model))
    assert not {"mla_up_proj", "mlp", "shared_experts"} & set(found["recompute-modules"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nemotron-3-nano-30b-a3b", "kinds of attention"),
        ("qwen3.5-397b-a17b", "kinds of attention"),
        ("gpt-oss-120b", "kinds of attention"),
        ("glm-5", "sparse"),
    ],
)
def test_what_arguments_cannot_say_is_left_out_and_said(name: str, why: str) -> None:
    plan, model = plan_of(name, schedule="interleaved", tp=1, dp=256)
    found = flags(megatron_arguments(plan, model))
    assert not {"num-layers", "num-attention-heads", "swiglu", "num-experts"} & set(found)
    assert {"pipeline-model-parallel-layout", "expert-model-parallel-size"} <= set(found)
    assert any(why in x for x in megatron_remarks(plan, model))


@pytest.mark.parametrize(("zero", "sharded"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_sharded_states_need_fsdp_and_its_checkpoints(zero: int, sharded: str) -> None:
    flat = {"pp": 1, "vpp": 1, "dp": 1024, "zero": zero, "schedule": "1f1b"}
    found = flags(megatron_arguments(*plan_of(**flat)))
    assert found["data-parallel-sharding-strategy"] == [sharded]
    assert found["ckpt-format"] == ["fsdp_dtensor"]
    assert "use-distributed-optimizer" not in found


def test_grouped_query_attention_without_a_pipeline() -> None:
    flat = {"pp": 1, "vpp": 1, "tp": 1, "dp": 2048, "ep": 8, "zero": 3, "schedule": "1f1b"}
    plan, model = plan_of("qwen3-30b-a3b", recompute="none", **flat)
    found = flags(megatron_arguments(plan, model))
    assert found["num-query-groups"] == ["4"]
    assert "pipeline-model-parallel-layout" not in found
    assert "sequence-parallel" not in found
    assert "use-megatron-fsdp" in found
    assert "use-distributed-optimizer" not in found
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in megatron_environment(plan)


def test_connections_follow_the_overlap() -> None:
    overlap, plain = plan_of(), plan_of(schedule="interleaved")
    assert megatron_environment(overlap[0])["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert megatron_environment(plain[0])["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_ascend_gets_its_own_environment() -> None:
    plan, model = plan_of("pangu-ultra-moe-718b", "atlas-800t-a2")
    found = megatron_environment(plan)
    assert "HCCL_CONNECT_TIMEOUT" in found
    arguments = flags(megatron_arguments(plan, model))
    assert "moe-fb-overlap" in arguments
    # MindSpeed lists these as incompatible with it.
    excluded = {"overlap-grad-reduce", "overlap-moe-expert-parallel-comm", "delay-wgrad-compute"}
    assert not excluded & set(arguments)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in found


def test_the_fragment_is_valid_shell() -> None:
    plan, model = plan_of()
    script = to_megatron(plan, model) + '\nprintf "%s\\n" "${MEGATRON_ARGS[@]}"'
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == megatron_arguments(plan, model)
    assert shlex.split(to_megatron(plan, model), comments=True)
